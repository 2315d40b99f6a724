"""TCP: only if enabled, on loopback, with a private password."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import asyncpg
import pytest
import redis

from qts.domain import Secret, ServerFailedError
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.embedded.process import InheritedPaths
from tests.embedded.clients import ask, cache, listens_on, mode, ping
from tests.embedded.conftest import copy_home

LOOPBACK = "0100007F"


@pytest.fixture(scope="module")
def by_tcp(kept_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServers]:
    home = copy_home(kept_home, tmp_path_factory.mktemp("tcp") / "home")
    with EmbeddedServers(home, EmbeddedConfig(tcp=True)) as running:
        yield running


@pytest.fixture
def home(kept_home: Home) -> Home:
    return kept_home


def tcp_urls(servers: EmbeddedServers) -> tuple[Secret, Secret]:
    assert servers.postgres
    assert servers.valkey
    assert servers.postgres.tcp_url
    assert servers.valkey.tcp_url
    return servers.postgres.tcp_url, servers.valkey.tcp_url


def without_password(url: Secret, instead: str = "") -> Secret:
    return Secret(re.sub(r":[^:@/]+@", f"{instead}@", url.reveal()))


async def test_both_answer_with_the_password(by_tcp: EmbeddedServers) -> None:
    postgres, valkey = tcp_urls(by_tcp)
    assert await ask(postgres, "SELECT current_database()") == "qts"
    assert ping(valkey)


async def test_both_answer_by_unix_socket_too(by_tcp: EmbeddedServers) -> None:
    assert await ask(by_tcp.home.postgres_url(), "SELECT 1") == 1
    assert ping(by_tcp.home.valkey_url())


@pytest.mark.parametrize("instead", ["", ":wrong"])
async def test_postgres_refuses_without_the_password(
    by_tcp: EmbeddedServers, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    postgres, _ = tcp_urls(by_tcp)
    with pytest.raises(asyncpg.InvalidPasswordError):
        await ask(without_password(postgres, instead), "SELECT 1")


def test_valkey_refuses_without_the_password(by_tcp: EmbeddedServers) -> None:
    _, valkey = tcp_urls(by_tcp)
    with cache(without_password(valkey)) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_only_loopback_is_listened_on(by_tcp: EmbeddedServers) -> None:
    for server in (by_tcp.postgres, by_tcp.valkey):
        assert server
        assert server.pid
        assert listens_on(server.pid) == {(LOOPBACK, server.port)}


def test_passwords_are_in_private_files_and_nowhere_else(by_tcp: EmbeddedServers) -> None:
    home = by_tcp.home
    shown = subprocess.run(["/bin/ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert "cluster_name=qts" in shown
    # A server may rewrite what ps shows of it, so look at the command lines themselves too.
    commands = [
        one.launch(InheritedPaths(None)).argv for one in (by_tcp.postgres, by_tcp.valkey) if one
    ]
    logs = "".join(path.read_text() for path in home.log.iterdir())
    assert "ready to accept connections" in logs
    for name in ("postgres", "valkey"):
        file = home.path / f"{name}.password"
        assert mode(file) == 0o600
        password = file.read_text().strip()
        assert len(password) >= 32
        assert password not in shown
        assert password not in str(commands)
        assert password not in logs
        assert password not in str(by_tcp.describe())
        assert password not in repr(tcp_urls(by_tcp))


async def test_lost_password_is_replaced(home: Home) -> None:
    lost = home.password("postgres")
    (home.path / "postgres.password").unlink()
    with EmbeddedServers(home, EmbeddedConfig(tcp=True), valkey=False) as servers:
        assert servers.postgres
        assert servers.postgres.tcp_url
        assert await ask(servers.postgres.tcp_url, "SELECT 1") == 1
    assert home.password("postgres") not in (None, lost)


def test_valkey_needs_no_password_once_tcp_is_off_again(home: Home) -> None:
    with EmbeddedServers(home, EmbeddedConfig(tcp=True), postgres=False):
        assert ping(home.valkey_url())
    with EmbeddedServers(home, EmbeddedConfig(), postgres=False):
        assert ping(home.valkey_url())
        assert not (home.path / "valkey.password").exists()


async def test_port_stays_the_same_after_a_crash(home: Home) -> None:
    with EmbeddedServers(home, EmbeddedConfig(tcp=True)) as servers:
        urls = tcp_urls(servers)
        for server in (servers.postgres, servers.valkey):
            assert server
            assert server._process
            server._process.kill()
            server._process.wait()
        assert servers.restart_dead() == ["valkey", "postgres"]
        assert tcp_urls(servers) == urls
        assert await ask(urls[0], "SELECT 1") == 1
    assert list(home.run.iterdir()) == []


async def test_given_port_is_used_and_a_taken_one_is_refused(
    home: Home, by_tcp: EmbeddedServers
) -> None:
    taken = by_tcp.postgres.port if by_tcp.postgres else 0
    config = EmbeddedConfig(tcp=True, postgres_port=taken)
    with pytest.raises(ServerFailedError, match="Address already in use") as failure:
        EmbeddedServers(home, config, valkey=False).start()
    assert "\n" not in str(failure.value)
    assert home.holder() is None
    assert await ask(by_tcp.home.postgres_url(), "SELECT 1") == 1


async def test_free_port_that_was_taken_meanwhile_is_replaced(
    home: Home, by_tcp: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qts.embedded import server

    taken, choose = tcp_ports(by_tcp), server._free_port
    choices = iter(taken)
    monkeypatch.setattr(server, "_free_port", lambda: next(choices, None) or choose())
    with EmbeddedServers(home, EmbeddedConfig(tcp=True)) as servers:
        assert set(tcp_ports(servers)).isdisjoint(taken)
        assert await ask(tcp_urls(servers)[0], "SELECT 1") == 1


def tcp_ports(servers: EmbeddedServers) -> list[int]:
    return [server.port for server in (servers.valkey, servers.postgres) if server]
