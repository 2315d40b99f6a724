"""Homes and programs for the tests of the embedded servers."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.embedded import EmbeddedConfig, EmbeddedServers, Home

PROGRAM = Path(__file__).with_name("program.py")


class Program:
    """Separate QTS process; see program.py."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def ready_info(self) -> dict[str, Any]:
        """Return what it prints when its servers are ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1].decode())
        info: dict[str, Any] = msgspec.json.decode(line)
        return info

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def finish(self) -> int:
        """Let it stop and return its exit code."""
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def run(home: Path, *arguments: str, options: tuple[str, ...] = ()) -> Program:
        programs.append(Program(sys.executable, *options, str(PROGRAM), str(home), *arguments))
        return programs[-1]

    yield run
    for one in programs:
        one.kill()


def copy_home(home: Home, to: Path) -> Home:
    """Copy a home, which is faster than an initdb."""
    with home.lock():
        subprocess.run(["/bin/cp", "-a", home.path, to], check=True)
    return Home.at(to)


@pytest.fixture(scope="session")
def kept_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Share one initialised home among tests."""
    home = Home.at(tmp_path_factory.mktemp("kept") / "home")
    with EmbeddedServers(home, EmbeddedConfig()):
        pass
    return home


@pytest.fixture
def home(kept_home: Home, tmp_path: Path) -> Home:
    """Return a private initialised home."""
    return copy_home(kept_home, tmp_path / "home")


@pytest.fixture
def servers(kept_home: Home) -> Iterator[EmbeddedServers]:
    with EmbeddedServers(kept_home, EmbeddedConfig()) as running:
        yield running


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """Create a directory that any user can reach."""
    path = Path(tempfile.mkdtemp(prefix="qts-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def directory_of_nobody(public_directory: Path) -> Path:
    entry = pwd.getpwnam("nobody")
    place = public_directory / "nobody"
    place.mkdir(mode=0o700)
    os.chown(place, entry.pw_uid, entry.pw_gid)
    return place
