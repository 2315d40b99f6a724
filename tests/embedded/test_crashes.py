"""Committed rows survive a kill of the servers or of the program that runs them."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from tests.embedded.clients import alive, ask, cache, pids, ping, processes_in, until
from tests.embedded.conftest import Program

WRITE = (
    "DROP TABLE IF EXISTS t",
    "CREATE TABLE t (n int)",
    "INSERT INTO t SELECT generate_series(1, 10000)",
)
COUNT = "SELECT count(*) FROM t"


@pytest.fixture
def home(kept_home: Home) -> Home:
    return kept_home


async def test_killed_postgres_comes_back_with_its_rows(home: Home) -> None:
    with EmbeddedServers(home, EmbeddedConfig()) as servers:
        assert servers.postgres
        await ask(servers.postgres.url, *WRITE)
        # A session that is busy in the server keeps its backend and the shared memory alive.
        session = await asyncpg.connect(servers.postgres.url.reveal())
        first = servers.postgres.pid
        assert first
        os.kill(first, signal.SIGKILL)
        assert until(lambda: not servers.postgres.running if servers.postgres else False)
        assert servers.restart_dead() == ["postgres"]
        assert servers.postgres.pid not in (None, first)
        assert await ask(servers.postgres.url, COUNT) == 10000
        session.terminate()


async def test_backends_that_outlive_postgres_are_waited_for(home: Home) -> None:
    """A stopped backend cannot notice that its server died; it still holds the shared memory."""
    with EmbeddedServers(home, EmbeddedConfig()) as servers:
        assert servers.postgres
        await ask(servers.postgres.url, *WRITE)
        session = await asyncpg.connect(servers.postgres.url.reveal())
        backend: int = await session.fetchval("SELECT pg_backend_pid()")
        first = servers.postgres.pid
        assert first
        os.kill(backend, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        assert until(lambda: not alive(first))
        log = servers.postgres.log.path
        tried = threading.Event()

        def wake_when_it_was_in_the_way() -> None:
            if until(lambda: "shared memory block" in log.read_text(), 10.0):
                tried.set()
            os.kill(backend, signal.SIGCONT)

        waker = threading.Thread(target=wake_when_it_was_in_the_way)
        waker.start()
        assert servers.restart_dead() == ["postgres"]
        waker.join()
        assert tried.is_set()
        assert await ask(servers.postgres.url, COUNT) == 10000
        session.terminate()


def test_killed_valkey_comes_back_empty(servers: EmbeddedServers) -> None:
    assert servers.valkey
    with cache(servers.valkey.url) as client:
        client.set("quote", "1")
    first = servers.valkey.pid
    assert first
    os.kill(first, signal.SIGKILL)
    assert until(lambda: servers.valkey is not None and servers.valkey.died)
    assert servers.restart_dead() == ["valkey"]
    with cache(servers.valkey.url) as client:
        assert client.get("quote") is None


def test_stop_after_a_crash_leaves_no_socket(home: Home) -> None:
    with EmbeddedServers(home, EmbeddedConfig()) as servers:
        killed = pids(servers)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: not any(map(alive, killed)))
        assert {path.name for path in home.run.iterdir()} >= {".s.PGSQL.5432", "valkey.sock"}
    assert list(home.run.iterdir()) == []


def test_restart_dead_leaves_the_living_alone(servers: EmbeddedServers) -> None:
    before = pids(servers)
    assert servers.restart_dead() == []
    assert pids(servers) == before


async def test_killed_program_takes_its_servers_along(
    home: Home, program: Callable[..., Program]
) -> None:
    running = program(home.path)
    info = running.ready_info()
    await ask(home.postgres_url(), *WRITE)
    running.kill()
    assert until(lambda: not alive(info["postgres"]) and not alive(info["valkey"]))
    with EmbeddedServers(home, EmbeddedConfig()):
        assert await ask(home.postgres_url(), COUNT) == 10000


async def test_start_right_after_a_kill_needs_no_pause(
    home: Home, program: Callable[..., Program]
) -> None:
    running = program(home.path)
    running.ready_info()
    await ask(home.postgres_url(), *WRITE)
    running.kill()
    with EmbeddedServers(home, EmbeddedConfig()):
        assert await ask(home.postgres_url(), COUNT) == 10000


async def test_orphans_are_stopped_by_the_next_start(
    home: Home, program: Callable[..., Program]
) -> None:
    """Where the kernel sends no death signal, servers survive a killed program."""
    without_signal = (
        "import runpy, sys; from qts.embedded import process; process._LIBC = None; "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    running = program(home.path, options=("-c", without_signal))
    info = running.ready_info()
    await ask(home.postgres_url(), *WRITE)
    running.kill()
    assert alive(info["postgres"])
    assert alive(info["valkey"])
    with EmbeddedServers(home, EmbeddedConfig()):
        assert not alive(info["postgres"])
        assert not alive(info["valkey"])
        assert await ask(home.postgres_url(), COUNT) == 10000
        assert ping(home.valkey_url())


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Start an unrelated process of the servers' user."""
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    with subprocess.Popen(["/bin/sleep", "100"], user=user) as process:
        yield process
        process.kill()


async def test_stranger_with_the_old_process_number_is_left_alone(
    home: Home, stranger: subprocess.Popen[bytes]
) -> None:
    """In a container the same small pids are reused at every start."""
    with EmbeddedServers(home, EmbeddedConfig()) as servers:
        assert servers.postgres
        await ask(servers.postgres.url, *WRITE)
        killed = servers.postgres.pid
        assert killed
        os.kill(killed, signal.SIGKILL)
        assert until(lambda: not alive(killed) and not processes_in(home.data))
    pid_file = home.data / "postmaster.pid"
    _, _, rest = pid_file.read_text().partition("\n")
    pid_file.write_text(f"{stranger.pid}\n{rest}")
    with EmbeddedServers(home, EmbeddedConfig()):
        assert await ask(home.postgres_url(), COUNT) == 10000
    assert stranger.poll() is None


@pytest.mark.parametrize("torn", ["", "\n", "garbage\n"])
async def test_torn_pid_file_does_not_stop_a_start(kept_home: Home, torn: str) -> None:
    (kept_home.data / "postmaster.pid").write_text(torn)
    with EmbeddedServers(kept_home, EmbeddedConfig(), valkey=False):
        assert await ask(kept_home.postgres_url(), "SELECT 1") == 1


async def test_killed_initdb_leaves_a_usable_home(
    tmp_path: Path, program: Callable[..., Program]
) -> None:
    home = Home.at(tmp_path / "home")
    running = program(home.path)
    assert until(lambda: any(home.path.glob("postgres.draft-*/base/1/*")), 60.0)
    running.kill()
    assert not home.data.exists()
    for _ in range(2):
        with EmbeddedServers(home, EmbeddedConfig()):
            assert await ask(home.postgres_url(), "SELECT 1") == 1
    assert list(home.path.glob("postgres.draft-*")) == []
