"""Errors of an unusable server: one line, without the password."""

from __future__ import annotations

import socket
import traceback
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import ConfigError, QtsError, RefusedError, Secret, UnreachableError
from tests.database.relay import Relay
from tests.services import name_database

CANARY = "s3cr3t-canary"
QUICK = DatabaseConfig(pool_min=1, pool_max=1, connect_timeout_s=0.5)


def at(netloc: str) -> Secret:
    return Secret(f"postgresql://someone:{CANARY}@{netloc}/trades")


async def refusal(url: Secret) -> QtsError:
    with pytest.raises(QtsError) as caught:
        async with Database.open(url, QUICK):
            pass
    text = "".join(traceback.format_exception(caught.value))
    assert CANARY not in text
    assert "canary" not in text
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


async def test_a_closed_port_is_unreachable() -> None:
    with socket.socket() as held:  # bound and not listening, so no other process can use the port
        held.bind(("127.0.0.1", 0))
        error = await refusal(at(f"127.0.0.1:{held.getsockname()[1]}"))
    assert isinstance(error, UnreachableError)
    assert "connection refused" in str(error)
    assert "/trades" in str(error)


async def test_an_unknown_host_is_unreachable() -> None:
    error = await refusal(at("no-such-host.invalid:5432"))
    assert isinstance(error, UnreachableError)
    assert "no-such-host.invalid:5432/trades" in str(error)


async def test_a_missing_socket_file_is_unreachable(tmp_path: Path) -> None:
    url = f"postgresql://someone:{CANARY}@/trades?host={tmp_path}"
    assert isinstance(await refusal(Secret(url)), UnreachableError)


async def test_a_server_that_never_answers_is_unreachable() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        error = await refusal(at(f"127.0.0.1:{silent.getsockname()[1]}"))
    assert "no answer in time" in str(error)


async def test_a_wrong_password_is_unreachable(postgres_url: Secret) -> None:
    parts = urlsplit(postgres_url.reveal())
    if not parts.password:
        parts = parts._replace(
            netloc=f"nobody-{CANARY[:6]}:{CANARY}@{parts.netloc.rpartition('@')[2]}"
        )
    else:
        parts = parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", f":{CANARY}@"))
    assert isinstance(await refusal(Secret(parts.geturl())), UnreachableError)


async def test_a_missing_database_is_unreachable(postgres_url: Secret) -> None:
    error = await refusal(name_database(postgres_url, "no_such_database"))
    assert isinstance(error, UnreachableError)
    assert '"no_such_database" does not exist' in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "trades",
        f"mysql://someone:{CANARY}@host/trades",
        f"postgresql://someone:{CANARY}/x@host:5432/trades",
        f"postgresql://someone:{CANARY}@x@host:5432/trades",
        f"postgresql://someone:{CANARY}?x@host:5432/trades",
        f"postgresql://someone:{CANARY}#x@host:5432/trades",
        f"postgresql://someone@host:{CANARY}/trades",
        f"postgresql://host/trades?{CANARY}",
        f"postgresql://[{CANARY}/trades",
    ],
)
async def test_a_url_that_is_not_understood_is_refused_without_showing_it(url: str) -> None:
    error = await refusal(Secret(url))
    assert isinstance(error, ConfigError)
    assert "postgresql://user:password@host:port/name" in str(error)


async def test_a_server_older_than_15_is_refused(postgres_url: Secret) -> None:
    def older(data: bytes) -> bytes:
        before, word, rest = data.partition(b"server_version\0")
        return before + word + (b"14" + rest[2:] if word else rest)

    async with Relay.to(postgres_url, older) as relay:
        with pytest.raises(RefusedError, match=r"is version 14\.\d+; QTS needs 15 or newer"):
            async with Database.open(relay.url, QUICK):
                pass
