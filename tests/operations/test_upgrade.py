"""The upgrade from 0.1.0: its database, settings and files give the same figures."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from qts.cli.main import run_command
from qts.config import describe, resolve
from qts.database.sql import FOLDER as FOLDER_OF_MIGRATIONS
from qts.database.sql import read_folder
from qts.domain import Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.outbox import TRADE_EXIT
from tests.acceptance.runs import INTERPRETED
from tests.operations.old_home import (
    FIGURES,
    FOLDER,
    copy_files,
    difference,
    load_database,
    renamed,
)

TABLES = """
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""
# Today a command shows one account, or all of them.
SCOPES = {"orders list --limit 1000": "--account all", "positions --all": "--account all"}
KIS = {
    "QTS_BROKERS__BROKER": "kis",
    "QTS_BROKERS__MODE": "live",
    "QTS_BROKERS__LIVE_ACKNOWLEDGEMENT": "I_UNDERSTAND_LIVE_TRADING",
    "QTS_VENUES__KIS__APP_KEY": "PSabc",
    "QTS_VENUES__KIS__APP_SECRET": "s",
    "QTS_VENUES__KIS__ACCOUNT": "5012345601",
}
LATEST = len(read_folder(FOLDER_OF_MIGRATIONS))
Qts = Callable[[str], Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def old_database(empty_database_url: Secret) -> Secret:
    """The database of 0.1.0."""
    await load_database(empty_database_url)
    return empty_database_url


@pytest.fixture
def qts(
    old_database: Secret,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Qts:
    """Command line on the database of 0.1.0, with its settings under their new names."""
    copy_files(tmp_path / "home")
    (tmp_path / "qts.toml").write_text((FOLDER / "qts.toml").read_text())
    assert renamed(tmp_path / "qts.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTS_DATABASE__URL", old_database.reveal())

    async def run(line: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run_command, line.split())
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


async def answer(qts: Qts, line: str) -> Any:
    code, printed, errors = await qts(line)
    assert code == 0, f"{line}: {errors}"
    return json.loads(printed)


async def test_no_table_of_0_1_0_is_empty(old_database: Secret) -> None:
    connection = await asyncpg.connect(old_database.reveal())
    try:
        names = [row["relname"] for row in await connection.fetch(TABLES)]
        counts = {
            name: await connection.fetchval(f'SELECT count(*) FROM public."{name}"')  # noqa: S608
            for name in names
        }
        schema = await connection.fetchval("SELECT max(version) FROM public.schema_migration")
    finally:
        await connection.close()
    assert (len(counts), schema) == (30, 15)
    assert [name for name, count in counts.items() if not count] == []


async def test_commands_before_the_migration_say_who_migrates(qts: Qts) -> None:
    for line in ("kill status", "orders list", "positions", "ops state list"):
        code, printed, errors = await qts(line)
        assert (code, printed, errors.count("\n")) == (2, "", 1), line
        assert f"has schema 15, and this QTS has {LATEST};" in errors
        assert "start qts run, which migrates it, or run qts ops database migrate" in errors


async def test_every_figure_of_0_1_0_is_the_same(qts: Qts) -> None:
    applied = (await answer(qts, "ops database migrate --json"))["applied"]
    assert applied[0]["version"] == 16
    different = {}
    for line, old in FIGURES.items():
        suffix = SCOPES.get(line, "")
        target = "--json -" if line.startswith("replay") else "--json"
        new = await answer(qts, f"{line} {suffix} {target}")
        if line == "outbox status":  # exits have a stream today
            new["streams"] = [row for row in new["streams"] if row["stream"] != TRADE_EXIT]
        if found := difference(old, new):
            different[line] = found
    assert different == {}


async def test_an_account_has_its_own_rows_and_only_paper_inherits_the_switches(
    qts: Qts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answer(qts, "ops database migrate --json")
    positions = FIGURES["positions --all"]["positions"]
    paper = await answer(qts, "positions --all --json")
    of_paper = [row for row in positions if row["broker"] == "paper"]
    assert difference(of_paper, paper["positions"]) == []
    switches = FIGURES["kill status"]["switches"]
    assert difference(switches, (await answer(qts, "kill status --json"))["switches"]) == []
    for name, value in KIS.items():
        monkeypatch.setenv(name, value)
    live = await answer(qts, "positions --all --json")
    of_kis = [row for row in positions if row["broker"] == "kis"]
    assert difference(of_kis, live["positions"]) == []
    assert len(of_paper) + len(of_kis) == len(positions)
    assert (await answer(qts, "kill status --json"))["switches"] == {}


async def test_a_journal_of_0_1_0_is_named_as_such_and_its_tokens_are_valid(
    qts: Qts, tmp_path: Path
) -> None:
    (journal,) = (tmp_path / "home/journal").iterdir()
    code, _, errors = await qts(f"dev verify decisions {journal}")
    assert code == 2
    assert "was written by an earlier version of QTS; that version can replay it" in errors
    token = json.loads((FOLDER / "home/dashboard.json").read_text())["trade"]
    await qts("ops database migrate")
    code, printed, errors = await qts("dashboard --link trade")
    assert code == 0, errors
    assert token in printed


def test_every_setting_of_0_1_0_is_accepted_or_refused_with_its_new_name(tmp_path: Path) -> None:
    for name, count in (("defaults.toml", 258), ("qts.toml", 33)):
        file = tmp_path / name
        file.write_text((FOLDER / name).read_text())
        old = flat(tomllib.loads(file.read_text()))
        names = renamed(file)
        found = json.loads(json.dumps(describe(resolve(file, {}))))["settings"]
        assert len(old) == count
        assert len(names) == 18
        for key, value in old.items():
            table, _, rest = key.partition(".")
            new = names.get(key) or f"{names.get(table, table)}.{rest}".rstrip(".")
            kept = found[new]["value"]
            is_path = isinstance(value, str) and str(kept).endswith(value)
            assert kept == value or is_path, f"{key}: {value!r} was, {kept!r} is"
            assert found[new]["from"] == "file"


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


class OldHome:
    """Home of 0.1.0 with its database, for processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        with EmbeddedServers(Home.at(self.home), EmbeddedConfig()) as servers:
            assert servers.postgres
            asyncio.run(load_database(servers.postgres.url))
        copy_files(self.home)
        file = folder / "qts.toml"
        file.write_text((FOLDER / "qts.toml").read_text())
        renamed(file)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
        # As the changelog says: records of more than 30 days are deleted otherwise.
        self._environ = {**clean, **INTERPRETED, "QTS_FEED__KEEP_DAYS": "0"}

    def run(self, duration: str = "5s") -> dict[str, Any]:
        self.qts(f"run --duration {duration} --json run.json")
        summary: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        assert (summary["verdict"], summary["books_agree"]) == ("OK", True)
        return summary

    def check_orders_and_files(self) -> None:
        """Orders, journals and records of 0.1.0 are what they were."""
        answered = json.loads(self.qts("orders list --limit 1000 --account all --json"))
        known = {row["intent_id"]: row for row in answered["orders"]}
        for row in FIGURES["orders list --limit 1000"]["orders"]:
            assert difference(row, known[row["intent_id"]]) == []
        for file in (FOLDER / "home").rglob("2*"):
            kept = self.home / file.relative_to(FOLDER / "home")
            assert kept.read_bytes() == file.read_bytes()

    def qts(self, line: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "qts", *line.split()],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.mark.timeout(300)  # a busy machine starts servers slowly
def test_a_run_migrates_the_home_and_leaves_the_figures_as_they_are(tmp_path: Path) -> None:
    old = OldHome(tmp_path.resolve())
    summary = old.run()  # the kill switch is on
    assert (summary["schema_version"], summary["intents"]) == (LATEST, 0)
    before = [row for row in FIGURES["positions --all"]["positions"] if row["broker"] == "paper"]
    assert difference(before, json.loads(old.qts("positions --all --json"))["positions"]) == []
    old.check_orders_and_files()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_run_on_the_migrated_home_trades_on(tmp_path: Path) -> None:
    old = OldHome(tmp_path.resolve())
    old.qts("ops database migrate")
    old.qts("kill off --reason upgraded")
    assert old.run("20s")["intents"] > 0
    old.check_orders_and_files()
