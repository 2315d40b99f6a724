"""The state in one file, and back, whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from qts.app.servers import without_password
from qts.domain import Secret
from qts.embedded import Home
from tests.cli.test_run import NO_DASHBOARD, Qts, _clean_environ

CANARY = "canary-5150"


def qts(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qts", *arguments],
        env={**_clean_environ(), "QTS_HOME": str(home), **environ},
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A home on which QTS traded, and a backup that was taken while it did."""
    home = tmp_path_factory.mktemp("lived").resolve() / "home"
    file = home.parent / "backup.tar"
    run = Qts(home, "run", QTS_TELEMETRY__LOG_LEVEL="error", **NO_DASHBOARD)
    try:
        run.until("Ready")
        made = qts(home, "kill", "on", "--reason", "before the backup")
        assert made.returncode == 0, made.stderr
        made = qts(home, "backup", str(file), QTS_NOTIFY__SLACK__URL=f"http://x/{CANARY}")
        assert made.returncode == 0, made.stderr
        assert "schema" in made.stdout
        assert run.end(signal.SIGINT) == 0
    finally:
        run.close()
    return home, file


def tables(home: Path) -> dict[str, Any]:
    """Return every row of every table, read through a server on the home."""

    async def read() -> dict[str, Any]:
        connection = await asyncpg.connect(Home.at(home).postgres_url().reveal())
        try:
            names = await connection.fetch(
                "SELECT c.oid::regclass::text FROM pg_class c WHERE relkind = 'r'"
                " AND relnamespace = 'public'::regnamespace ORDER BY 1"
            )
            return {
                name: await connection.fetchval(
                    f"SELECT count(*) || ' ' || coalesce(md5(string_agg(t::text, '|'"  # noqa: S608 - names are the server's
                    f" ORDER BY t::text)), '') FROM {name} t"
                )
                for (name,) in names
            }
        finally:
            await connection.close()

    return asyncio.run(read())


def test_a_restored_home_holds_the_same_rows_and_does_not_trade(
    lived: tuple[Path, Path], tmp_path: Path
) -> None:
    home, _ = lived
    first = tmp_path.resolve() / "a"
    again = tmp_path / "again.tar"
    # Made again at rest: nothing changes between the dump and the comparison.
    assert qts(home, "backup", str(again)).returncode == 0
    restored = qts(first, "restore", str(again))
    assert restored.returncode == 0, restored.stderr
    assert "trading is STOPPED" in restored.stdout
    seen = {}
    for place in (home, first):
        run = Qts(place, "run", "--servers-only")
        try:
            run.until("Ready")
            seen[place] = tables(place)
            assert run.end(signal.SIGINT) == 0
        finally:
            run.close()
    assert len(seen[home]) > 15
    switch = {"kill_switch", "outbox_event", "outbox_event_id"}  # and the event that reports it
    assert {k: v for k, v in seen[first].items() if k not in switch} == {
        k: v for k, v in seen[home].items() if k not in switch
    }
    switch = json.loads(qts(first, "kill", "status", "--json").stdout)["switches"]["account"]
    assert (switch["enabled"], switch["changed_by"]) == (False, "restore")


@pytest.mark.soak
def test_a_home_restored_from_a_run_that_traded_runs(
    lived: tuple[Path, Path], tmp_path: Path
) -> None:
    home = tmp_path.resolve() / "home"
    assert qts(home, "restore", str(lived[1])).returncode == 0
    run = Qts(home, "run", "--for", "1s", QTS_TELEMETRY__LOG_LEVEL="error", **NO_DASHBOARD)
    try:
        run.until("OK after")
        assert run.end() == 0
    finally:
        run.close()


def test_no_secret_and_nobody_elses_eyes(lived: tuple[Path, Path]) -> None:
    _, file = lived
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert CANARY.encode() not in file.read_bytes()
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["manifest.json", "settings.toml", "database.dump"]
        settings = archive.extractfile("settings.toml")
        assert settings is not None
        assert 'url = "***"  # environment, QTS_NOTIFY__SLACK__URL' in settings.read().decode()
        content = archive.extractfile("manifest.json")
        assert content is not None
        manifest = json.loads(content.read())
    assert manifest["schema"] >= 10
    assert [record for record in manifest["records"] if record["bytes"] < 0] == []


def test_a_file_that_is_there_is_not_overwritten(lived: tuple[Path, Path]) -> None:
    home, file = lived
    before = file.read_bytes()
    made = qts(home, "backup", str(file))
    assert (made.returncode, made.stderr) == (2, f"qts: {file} exists; name a new file\n")
    assert file.read_bytes() == before


def test_a_home_that_lived_is_not_overwritten(lived: tuple[Path, Path]) -> None:
    home, file = lived
    made = qts(home, "restore", str(file))
    assert made.returncode == 2
    assert "restore into an empty one" in made.stderr


def test_nothing_is_restored_under_a_qts_that_runs(
    lived: tuple[Path, Path], tmp_path: Path
) -> None:
    home = tmp_path.resolve() / "home"
    run = Qts(home, "run", "--servers-only")
    try:
        run.until("Ready")
        made = qts(home, "restore", str(lived[1]))
        assert made.returncode == 2
        assert f"in use by process {run.process.pid}" in made.stderr
    finally:
        run.close()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200_000])


def _spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-50_000] ^= 0xFF
    file.write_bytes(bytes(content))


def _empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [_cut, _spoil, _empty, Path.unlink])
def test_a_harmed_backup_is_refused_and_leaves_nothing(
    lived: tuple[Path, Path], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    file = tmp_path / "harmed.tar"
    file.write_bytes(lived[1].read_bytes())
    harm(file)
    home = tmp_path.resolve() / "home"
    made = qts(home, "restore", str(file))
    assert made.returncode == 2, made.stderr
    assert made.stderr.startswith(f"qts: {file} is ")
    assert not (home / "postgres").exists()


@pytest.mark.parametrize(
    ("url", "bare", "password"),
    [
        (
            "postgresql://a:p%40ss@h:5/d?sslmode=require",
            "postgresql://a@h:5/d?sslmode=require",
            "p@ss",
        ),
        ("postgresql://qts@/qts?host=/run&port=5", "postgresql://qts@/qts?host=/run&port=5", None),
        ("postgresql:///d", "postgresql:///d", None),
        ("postgresql://h/d?password=x&user=u", "postgresql://h/d?user=u", "x"),
    ],
)
def test_a_password_never_stands_in_the_list_of_processes(
    url: str, bare: str, password: str | None
) -> None:
    shown, environ = without_password(Secret(url))
    assert shown == bare
    assert environ.get("PGPASSWORD") == password
    assert os.environ.get("PGPASSWORD") is None
