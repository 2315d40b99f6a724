"""`qts cache` as a user runs it."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from qts.cache import Cache, CacheConfig
from qts.cache.redis import RedisStore
from qts.cache.store import StoreWrite
from qts.cli.main import run_command
from qts.domain import Secret
from tests.cache import samples
from tests.cache.conftest import until
from tests.cache.loader import MemoryLoader

ON_A_TERMINAL = """
import sys
from qts.cli.main import run_command
sys.exit(run_command(["ops", "cache", "flush"]))
"""


class CommandResult(NamedTuple):
    code: int
    out: str
    error: str


Qts = Callable[..., Awaitable[CommandResult]]
Opened = Callable[..., Awaitable[Cache]]


@pytest.fixture
def settings(tmp_path: Path, valkey_url: Secret, config: CacheConfig) -> dict[str, str]:
    return {
        "REDIS_URL": valkey_url.reveal(),
        "QTS_CACHE__PREFIX": config.prefix,
        "QTS_HOME": str(tmp_path),
    }


@pytest.fixture
def qts(
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Qts:
    """The command in a thread of this process: the loop of the cache under test keeps running."""

    async def run(*arguments: str, url: str | None = None) -> CommandResult:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        if url is not None:
            monkeypatch.setenv("REDIS_URL", url)
        if url == "":
            monkeypatch.delenv("REDIS_URL")
        monkeypatch.setattr("sys.stdin", io.StringIO())
        capsys.readouterr()
        code = await asyncio.to_thread(run_command, ["ops", "cache", *arguments])
        return CommandResult(code, *capsys.readouterr())

    return run


async def test_status_shows_server_keys_and_processes(
    qts: Qts, opened: Opened, shared: RedisStore, patient: CacheConfig
) -> None:
    cache = await opened(shared, MemoryLoader(samples.risk(), samples.position()), patient)
    await cache.strategies.put(samples.strategy())
    await cache.orders.put(samples.order())
    for _ in range(200):
        await cache.risks.get("account")
    await until(lambda: cache.status().queue.written > 0)
    await cache._monitor.check()

    result = await qts("status", "--json")
    assert (result.code, result.error) == (0, "")
    found = msgspec.json.decode(result.out)
    assert found["keys"] == {"order": 1, "risk": 1, "strategy": 1}
    assert found["server"]["used_memory"] > 0
    (process,) = found["processes"].values()
    assert process["breaker"] == "closed"
    assert process["kinds"]["risk"]["hit_rate"] == 199 / 200

    text = (await qts("status")).out
    assert text.startswith("server   ")
    assert "order 1, risk 1, strategy 1" in text
    assert f"process  {os.getpid()}: circuit closed" in text
    assert "risk      hit rate 99.5% of 200, goal 90%" in text


async def test_get_shows_a_value_as_it_is(
    qts: Qts, opened: Opened, shared: RedisStore, patient: CacheConfig
) -> None:
    cache = await opened(shared, MemoryLoader(), patient)
    await cache.orders.put(samples.order())
    result = await qts("get", "order", "ORD123456")
    assert result.code == 0, result.error
    assert "status          PARTIALLY_FILLED\n" in result.out

    book = samples.book()
    entry = StoreWrite.of(patient.prefix + "book:{005930}", 1, 60_000, book.fields(), book.sides())
    await shared.write([entry])
    found = msgspec.json.decode((await qts("get", "book", "005930", "--json")).out)
    assert found["bids"][0] == [75000, "1000"]
    assert found["asks"][0] == [75100, "1000"]


async def test_flush_deletes_ours_and_only_ours(
    qts: Qts, shared: RedisStore, config: CacheConfig, valkey_url: Secret
) -> None:
    await shared.write(
        [StoreWrite.of(f"{config.prefix}k{n}", 1, 60_000, {"ver": "1"}) for n in range(1200)]
    )
    foreign = config.prefix.replace(":", "-of-another-program")
    await shared.write([StoreWrite.of(foreign, 1, 60_000, {"ver": "1"})])
    try:
        refused = await qts("flush")
        assert refused.code == 2
        assert "add --yes" in refused.error
        assert len(await shared.keys(config.prefix)) == 1200

        assert (await qts("flush", "--yes")).out == "deleted 1200 keys\n"
        assert await shared.keys(config.prefix) == []
        assert await shared.read([foreign]) == [{"ver": "1"}]
    finally:
        await shared.delete([foreign])


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 3), (b"y\n", 0)])
async def test_flush_asks_first(
    settings: dict[str, str], shared: RedisStore, config: CacheConfig, answer: bytes, left: int
) -> None:
    await shared.write(
        [StoreWrite.of(f"{config.prefix}k{n}", 1, 60_000, {"ver": "1"}) for n in range(3)]
    )
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer)
        result = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", ON_A_TERMINAL],
            env={"PATH": os.environ["PATH"], **settings},
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert f"Delete 3 keys that begin with {config.prefix}?" in result.stdout
    assert len(await shared.keys(config.prefix)) == left


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("get", "prices", "A"), 2, "'prices' is not a kind of value; allowed are price, "),
        (("get", "price", "a b"), 2, "price 'a b' is not a name"),
        (("get", "price", "NOBODY"), 1, "the cache has no price of NOBODY"),
    ],
)
async def test_a_usage_error_is_one_line(
    qts: Qts, arguments: tuple[str, ...], code: int, line: str
) -> None:
    result = await qts(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.error.startswith(f"qts: {line}")
    assert len(result.error.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("redis://:canary@127.0.0.1:1/0", "qts: no reply from 127.0.0.1:1: "),
        ("", "qts: no cache to read: no QTS runs on home "),
    ],
)
async def test_an_unreachable_cache_is_one_line_and_exit_code_1(
    qts: Qts, url: str, line: str
) -> None:
    result = await qts("status", url=url)
    assert (result.code, result.out) == (1, "")
    assert result.error.startswith(line)
    assert "canary" not in result.error
    assert len(result.error.splitlines()) == 1


async def test_the_status_of_an_ended_process_expires(
    opened: Opened, shared: RedisStore, patient: CacheConfig
) -> None:
    cache = await opened(shared, MemoryLoader(), patient)
    await until(lambda: cache.status().server is not None)
    await cache._monitor.check()
    (key,) = await shared.keys(patient.prefix + "status:")
    (life_ms,) = await shared._transport.send([("PTTL", key)], reads=True)
    assert 0 < life_ms <= 5000
