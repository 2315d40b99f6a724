"""Embedded NATS: private, on loopback, ended with its parent; streams survive a crash."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import Error

from qts.domain import HomeInUseError, RefusedError, Secret, ServerFailedError
from qts.embedded import (
    EmbeddedConfig,
    EmbeddedServers,
    Home,
    NatsServer,
    NatsServerConfig,
    find_binaries,
    server,
)
from qts.embedded.binaries import find_binary
from tests.embedded.clients import alive, listens_on, mode, owner, processes_in, status_of, until

LOOPBACK = "0100007F"
PARENT = """
import sys
from pathlib import Path
from qts.embedded import Home, NatsServer
with NatsServer(Home.at(Path(sys.argv[1]))) as nats:
    print(nats.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


@pytest.fixture
def nats(home: Home) -> Iterator[NatsServer]:
    with NatsServer(home) as running:
        yield running


@asynccontextmanager
async def jetstream(url: Secret) -> AsyncIterator[Any]:
    link = Client()
    try:
        await link.connect(url.reveal(), allow_reconnect=False, error_cb=_ignore)
        yield link.jetstream()
    finally:
        await link.close()


async def _ignore(_error: Exception) -> None:
    """Ignore reconnect errors."""


def kill(nats: NatsServer) -> None:
    assert nats._process
    nats._process.kill()
    nats._process.wait()


async def test_streams_can_be_written_and_read(nats: NatsServer) -> None:
    async with jetstream(nats.url) as stream:
        await stream.add_stream(name="S", subjects=["s"])
        stored = await stream.publish("s", b"tick")
        assert (await stream.get_msg("S", stored.seq)).data == b"tick"


async def test_streams_outlive_a_killed_server(nats: NatsServer) -> None:
    async with jetstream(nats.url) as stream:
        await stream.add_stream(name="S", subjects=["s"])
        for number in range(100):
            await stream.publish("s", str(number).encode())
    port = nats.port
    kill(nats)
    assert nats.died
    nats.start()
    assert nats.port == port
    async with jetstream(nats.url) as stream:
        assert (await stream.stream_info("S")).state.messages == 100


@pytest.mark.parametrize("login", ["", "qts:wrong@"])
async def test_password_is_required(nats: NatsServer, login: str) -> None:
    url = Secret(f"nats://{login}127.0.0.1:{nats.port}")
    with pytest.raises(Error, match=r"(?i:authorization)"):
        async with jetstream(url):
            pass


def test_password_is_in_private_files_only(nats: NatsServer) -> None:
    password = nats.home.password("nats")
    assert password
    assert nats.pid
    secret = password.reveal()
    assert len(secret) >= 32
    settings = nats.home.run / "nats.conf"
    assert secret in settings.read_text()
    assert mode(settings) == mode(nats.home.path / "nats.password") == 0o600
    shown = subprocess.run(["/bin/ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert "nats.conf" in shown
    for text in (shown, nats.log.path.read_text(), str(nats.describe()), repr(nats.url)):
        assert secret not in text


def test_only_loopback_is_listened_on(nats: NatsServer) -> None:
    assert nats.pid
    assert listens_on(nats.pid) == {(LOOPBACK, nats.port)}
    assert nats.describe()["where"] == f"127.0.0.1:{nats.port}"


def test_server_is_unprivileged_and_its_store_private(nats: NatsServer) -> None:
    assert nats.pid
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    assert status_of(nats.pid)["Uid"] == (str(user),) * 4
    assert (mode(nats.store), owner(nats.store)) == (0o700, user)
    assert mode(nats.home.path) == 0o700


def test_stop_leaves_no_process_and_no_settings(home: Home) -> None:
    with NatsServer(home) as nats:
        pid = nats.pid
        assert pid
        assert processes_in(home.run) == [pid]
    assert not alive(pid)
    assert list(home.run.iterdir()) == []
    assert home.holder() is None


def test_server_dies_with_a_killed_parent(home: Home) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(home.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    assert until(lambda: not alive(pid))
    with NatsServer(home) as nats:  # leftovers of the killed one are no obstacle
        assert nats.pid != pid


def test_second_start_on_a_home_is_refused(nats: NatsServer) -> None:
    with pytest.raises(HomeInUseError), NatsServer(nats.home):
        pass
    assert nats.running


def test_given_port_that_is_taken_is_refused(nats: NatsServer, tmp_path: Path) -> None:
    other = Home.at(tmp_path / "other")
    with (
        pytest.raises(ServerFailedError, match="address already in use") as failure,
        NatsServer(other, NatsServerConfig(port=nats.port)),
    ):
        pass
    assert "\n" not in str(failure.value)
    assert other.holder() is None


def test_free_port_that_was_taken_meanwhile_is_replaced(
    nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, choices = server._free_port, iter([nats.port])
    monkeypatch.setattr(server, "_free_port", lambda: next(choices, None) or choose())
    with NatsServer(Home.at(tmp_path / "other")) as other:
        assert other.port != nats.port


@pytest.mark.parametrize("interval", ["always", "500ms"])
def test_sync_interval_is_the_servers_own(home: Home, interval: str) -> None:
    with NatsServer(home, NatsServerConfig(sync_interval=interval)) as nats:
        checked = subprocess.run(
            [str(nats.binary.path), "-t", "-c", str(home.run / "nats.conf")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr
        assert f'"sync_interval": "{interval}"' in (home.run / "nats.conf").read_text()


@pytest.mark.parametrize("interval", ["2", "2 m", "never", '1s", "x": "'])
def test_odd_sync_interval_is_refused(home: Home, interval: str) -> None:
    with pytest.raises(RefusedError, match="sync_interval"):
        NatsServer(home, NatsServerConfig(sync_interval=interval))


def test_usual_servers_do_not_include_it(tmp_path: Path) -> None:
    assert find_binary("nats").name == "nats"
    assert "nats" not in {binary.name for binary in find_binaries()}
    servers = EmbeddedServers(Home.at(tmp_path), EmbeddedConfig())
    assert "nats" not in {entry["name"] for entry in servers.describe()}
