"""The home directory: private, at a stable path, locked by one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import HomeInUseError, RefusedError
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home, default_home
from tests.embedded.clients import ask, mode, ping

OWN_UID = os.geteuid()
SOME_OTHER_UID = 12345


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"QTS_HOME": "/srv/qts", "HOME": "/home/kim"}, "/srv/qts"),
        ({"QTS_HOME": "", "HOME": "/home/kim"}, "/home/kim/.local/state/qts"),
        ({"HOME": "/home/kim"}, "/home/kim/.local/state/qts"),
    ],
)
def test_default_home(environ: dict[str, str], home: str) -> None:
    assert default_home(environ) == Path(home)


def test_new_home_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home = Home.at(tmp_path / "a" / "home")
    finally:
        os.umask(before)
    assert mode(home.path) == 0o700


def test_empty_directory_is_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert mode(Home.at(tmp_path).path) == 0o700


def test_home_is_made_private_again(tmp_path: Path) -> None:
    with Home.at(tmp_path).lock():
        tmp_path.chmod(0o755)
    assert mode(Home.at(tmp_path).path) == 0o700


def test_open_directory_with_other_files_is_refused_and_untouched(tmp_path: Path) -> None:
    """QTS_HOME=/ by mistake must not change the mode of /."""
    (tmp_path / "someones-file").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(RefusedError, match="contains other files; choose an empty directory"):
        Home.at(tmp_path)
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("inside", [".", "below"])
def test_file_is_refused_as_home(tmp_path: Path, inside: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RefusedError, match=r"is not a directory; choose another with QTS_HOME$"):
        Home.at(file / inside)


def test_home_on_a_file_system_that_takes_no_files_is_refused() -> None:
    with pytest.raises(RefusedError, match="home /proc/qts cannot be created: "):
        Home.at(Path("/proc/qts"))


def test_home_through_a_symlink_is_the_same_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    (tmp_path / "link").symlink_to(home.path)
    assert Home.at(tmp_path / "link").path == home.path


def test_home_of_another_user_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path if OWN_UID == 0 else Path("/usr")
    if OWN_UID == 0:
        os.chown(foreign, SOME_OTHER_UID, SOME_OTHER_UID)
    with pytest.raises(RefusedError, match="belongs to another user"):
        Home.at(foreign)


def test_lock_names_its_holder_until_released(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    assert home.holder() is None
    lock = home.lock()
    assert home.holder() == os.getpid()
    with pytest.raises(
        HomeInUseError, match=rf"^home {home.path} is in use by process {os.getpid()}; "
    ):
        home.lock()
    assert home.holder() == os.getpid()
    lock.release()
    lock.release()
    assert home.holder() is None


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    code = (
        "import sys; from pathlib import Path; from qts.embedded import Home; "
        "lock = Home.at(Path(sys.argv[1])).lock(); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(home.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert home.holder() == other.pid
        other.kill()
    assert home.holder() is None
    with home.lock():
        assert home.holder() == os.getpid()


ODD_NAMES = st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1)
PLAIN_NAMES = st.integers(1, 200).map(lambda length: "x" * length)


@given(ODD_NAMES | PLAIN_NAMES)
def test_any_home_has_one_socket_directory_that_fits(name: str) -> None:
    path = Path("/h", name)
    run = Home(path).run
    assert run == Home(path).run
    assert len(os.fsencode(run / ".s.PGSQL.65535")) < 100
    assert parse_qs(urlsplit(Home(path).postgres_url().reveal()).query)["host"] == [str(run)]
    assert urlsplit(Home(path).valkey_url().reveal()).path == str(run / "valkey.sock")


@given(st.sets(st.integers(0, 10**9), min_size=2, max_size=20))
def test_long_homes_do_not_share_sockets(numbers: set[int]) -> None:
    homes = [Home(Path("/h" * 100, str(number))) for number in numbers]
    assert len({home.run for home in homes}) == len(numbers)


@pytest.fixture
def long_home(tmp_path: Path) -> Iterator[Home]:
    home = Home.at(tmp_path / "a, long & odd/path" / ("x" * 120))
    parent = home.run.parent
    yield home
    if parent.is_symlink() or parent.is_file():
        parent.unlink()
    for path in (home.run, parent):
        if path.is_dir():
            path.rmdir()


async def test_home_with_a_long_odd_path_works(long_home: Home) -> None:
    assert long_home.run.parent.parent == Path("/tmp")
    with EmbeddedServers(long_home, EmbeddedConfig()) as servers:
        assert servers.postgres
        assert servers.valkey
        assert await ask(Home.at(long_home.path).postgres_url(), "SELECT 1") == 1
        assert ping(Home.at(long_home.path).valkey_url())
        assert mode(long_home.run.parent) == 0o700
        assert long_home.run.parent.stat().st_uid == OWN_UID


def test_squatted_socket_directory_is_refused(long_home: Home, tmp_path: Path) -> None:
    parent = long_home.run.parent
    parent.mkdir()
    parent.chmod(0o777)
    for use in (lambda: long_home.run, long_home.create_directories, long_home.postgres_url):
        with pytest.raises(RefusedError, match=f"^{parent} is not a directory of this user"):
            use()
    parent.rmdir()
    parent.symlink_to(tmp_path)
    with pytest.raises(RefusedError, match=f"^{parent} is not a directory of this user"):
        Home(long_home.path).valkey_url()
