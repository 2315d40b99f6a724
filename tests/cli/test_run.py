"""`qts run` as a separate process on a temporary home."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qts.brokers import open_account
from qts.database import Database
from qts.domain import Secret
from qts.embedded import Home
from qts.risk import FailSafe, SafetyState
from tests.acceptance.runs import COMPILED, INTERPRETED, SLOW_MARKET
from tests.accounts import PAPER
from tests.embedded.clients import alive, ask, processes_in, until

DEADLINE_S = 30.0
NO_DASHBOARD = {"QTS_DASHBOARD__ENABLED": "false"}


class Qts:
    """One `qts` command, its output read line by line."""

    def __init__(self, home: Path, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qts", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **_clean_environ(),
                **INTERPRETED,
                **SLOW_MARKET,
                "QTS_HOME": str(home),
                "QTS_DASHBOARD__PORT": "0",  # others run beside this one
                **environ,
            },
            cwd=home.parent,
        )

    def until(self, words: str) -> str:
        """Return the output up to the line with these words."""
        assert self.process.stdout
        output = ""
        for line in self.process.stdout:
            output += line
            if words in line:
                return output
        raise AssertionError(f"ended without {words!r}: {output} {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr
        return self.process.stderr.read()

    def end(self, number: int | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "home"


@pytest.fixture
def qts(home: Path) -> Iterator[Callable[..., Qts]]:
    started: list[Qts] = []

    def start(*arguments: str, **environ: str) -> Qts:
        started.append(Qts(home, *arguments, **environ))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_a_timed_run_reports_its_servers_and_stops_them(
    qts: Callable[..., Qts], home: Path, tmp_path: Path
) -> None:
    report = tmp_path / "summary.json"
    run = qts("run", "--servers-only", "--duration", "1s", "--json", str(report))
    output = run.until("OK after")
    assert run.end() == 0
    assert "postgres" in output
    assert "valkey" in output
    summary = json.loads(report.read_text())
    assert summary["verdict"] == "OK"
    assert summary["schema_version"] >= 1
    assert [service["name"] for service in summary["services"]] == ["postgres", "valkey"]
    for service in summary["services"]:
        assert not alive(service["pid"])
    assert _servers_of(home) == []


@pytest.mark.parametrize(
    ("number", "settings"),
    [(signal.SIGINT, COMPILED), (signal.SIGTERM, NO_DASHBOARD)],
    ids=["SIGINT with all its parts", "SIGTERM"],
)
def test_a_signal_stops_it_cleanly(
    qts: Callable[..., Qts], home: Path, number: int, settings: dict[str, str]
) -> None:
    run = qts("run", **settings)
    run.until("Ready")
    assert run.end(number) == 0
    assert _servers_of(home) == []


async def test_servers_end_with_a_killed_run_and_the_next_run_has_the_data(
    qts: Callable[..., Qts], home: Path
) -> None:
    run = qts("run", **NO_DASHBOARD)
    run.until("Ready")
    await _execute(home, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert len(_servers_of(home)) >= 2
    run.end(signal.SIGKILL)
    assert until(lambda: not _servers_of(home), DEADLINE_S)
    again = qts("run", "--servers-only")
    again.until("Ready")
    assert await _execute(home, "SELECT answer FROM kept") == 42
    assert again.end(signal.SIGINT) == 0


def test_top_once_fails_while_a_run_hangs(qts: Callable[..., Qts]) -> None:
    def top() -> int:
        return qts("top", "--once").end()

    run = qts("run", **NO_DASHBOARD)
    run.until("Ready")
    assert until(lambda: top() == 0, DEADLINE_S)
    run.process.send_signal(signal.SIGSTOP)
    try:
        assert until(lambda: top() == 1, DEADLINE_S)
    finally:
        run.process.send_signal(signal.SIGCONT)
    assert until(lambda: top() == 0, DEADLINE_S)
    assert run.end(signal.SIGINT) == 0


async def test_a_second_start_is_refused_and_the_first_is_unharmed(
    qts: Callable[..., Qts], home: Path
) -> None:
    first = qts("run", "--servers-only")
    first.until("Ready")
    second = qts("run", "--servers-only")
    assert second.end() == 2
    (line,) = second.errors().splitlines()
    assert str(home) in line
    assert str(first.process.pid) in line
    assert await _execute(home, "SELECT 1") == 1
    assert first.end(signal.SIGINT) == 0


async def test_a_dead_server_is_restarted(qts: Callable[..., Qts], home: Path) -> None:
    run = qts("run", "--servers-only", "--json", "-")
    _until_error_line(run, "Ready")
    await _execute(home, "CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(int((home / "postgres/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    _until_error_line(run, "server died; restarted")
    assert await _execute(home, "SELECT answer FROM kept") == 42
    assert run.end(signal.SIGINT) == 0
    assert run.process.stdout
    assert json.loads(run.process.stdout.read())["restarts"] == ["postgres"]


def test_other_commands_use_the_servers_of_a_running_qts(qts: Callable[..., Qts]) -> None:
    run = qts("run", "--servers-only")
    run.until("Ready")
    status = qts("ops", "database", "status", "--json")
    assert status.end() == 0
    assert status.process.stdout
    assert json.loads(status.process.stdout.read())["pending"] == []
    assert run.end(signal.SIGINT) == 0


def test_a_command_starts_the_database_it_needs(qts: Callable[..., Qts], home: Path) -> None:
    migrate = qts("ops", "database", "migrate")
    assert migrate.end() == 0
    assert _servers_of(home) == []


def test_servers_named_by_the_environment_are_used_and_none_is_started(
    qts: Callable[..., Qts], home: Path, empty_database_url: Secret, valkey_url: Secret
) -> None:
    run = qts(
        "run",
        "--servers-only",
        DATABASE_URL=empty_database_url.reveal(),
        REDIS_URL=valkey_url.reveal(),
    )
    assert "external" in run.until("Ready")
    assert _servers_of(home) == []
    assert run.end(signal.SIGINT) == 0


async def test_a_run_that_starts_in_lockdown_says_what_releases_it(
    qts: Callable[..., Qts], database: Database, database_url: Secret, valkey_url: Secret
) -> None:
    await open_account(database, PAPER, is_live=False)
    await FailSafe(database, PAPER).trip("FS104", "open losses")
    servers = {"DATABASE_URL": database_url.reveal(), "REDIS_URL": valkey_url.reveal()}
    run = qts("run", **NO_DASHBOARD, **servers)
    printed = await asyncio.to_thread(run.until, "Ready")
    (line,) = [line for line in printed.splitlines() if "LOCKDOWN" in line]
    assert line.startswith("LOCKDOWN  FS104 the volatility kill: everything is sold: open losses")
    command = line.partition("; no orders until: ")[2]
    assert await asyncio.to_thread(run.end, signal.SIGINT) == 1
    release = qts(*shlex.split(command)[1:], "--yes", **servers)
    assert await asyncio.to_thread(release.end) == 0
    assert (await FailSafe(database, PAPER).now()).state is SafetyState.NORMAL


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (["run"], "[events.p0]\nqueue_sise = 5\n", "events.p0.queue_size"),
        (["run", "--for", "soon"], "", "'soon' is not a duration"),
        (["run", "--fro", "5s"], "", "No such option: --fro"),
        (["run", "--json", "nowhere/x.json"], "", "nowhere/x.json"),
        (["walk"], "", "No such command 'walk'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    qts: Callable[..., Qts], home: Path, arguments: list[str], settings: str, words: str
) -> None:
    (home.parent / "qts.toml").write_text(settings)
    run = qts(*arguments)
    assert run.end() == 2
    (line,) = run.errors().splitlines()
    assert words in line
    assert not (home / "postgres").exists()


def _until_error_line(run: Qts, words: str) -> None:
    assert run.process.stderr
    for line in run.process.stderr:
        if words in line:
            return
    raise AssertionError(f"ended without {words!r}")


async def _execute(home: Path, query: str) -> Any:
    return await ask(Home(home).postgres_url(), query)


def _servers_of(home: Path) -> list[int]:
    """Return the processes running below this home, as the kernel lists them."""
    return [pid for part in ("postgres", "run") for pid in _processes_in(home / part)]


def _processes_in(directory: Path) -> list[int]:
    return processes_in(directory) if directory.exists() else []


def _clean_environ() -> dict[str, str]:
    names = {"DATABASE_URL", "REDIS_URL"}
    return {k: v for k, v in os.environ.items() if k not in names and not k.startswith("QTS_")}
