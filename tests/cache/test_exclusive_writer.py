"""A single writer needs no script; with a second one, the greater version still wins."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from qts.cache import CacheConfig
from qts.cache.connection import Command, RedisConnection, pack
from qts.cache.exclusive_writer import ExclusiveWriter
from qts.cache.redis import RedisStore
from qts.cache.store import StoreWrite
from qts.domain import OperationError, Secret, UnreachableError
from qts.embedded import ValkeyServer
from tests.cache.proxy import Proxy

SEED = 20261115
SIZE = 30


@pytest.fixture
def config(config: CacheConfig) -> CacheConfig:
    return msgspec.structs.replace(config, socket_timeout_ms=5000)


@pytest.fixture
async def store(valkey_url: Secret, config: CacheConfig) -> AsyncIterator[RedisStore]:
    async with RedisStore.open(valkey_url, config) as store:
        yield store
        await store.delete(await store.keys(config.prefix))


@pytest.fixture
async def other(valkey_url: Secret, config: CacheConfig) -> AsyncIterator[RedisStore]:
    async with RedisStore.open(valkey_url, config) as store:
        yield store


@pytest.fixture
async def connection(valkey_url: Secret, config: CacheConfig) -> AsyncIterator[RedisConnection]:
    connection = RedisConnection(valkey_url, config)
    yield connection
    await connection.close()


def entry(key: str, ver: int, text: str = "x", ttl_ms: int = 60_000) -> StoreWrite:
    names = ("key", "text", "ver")
    return StoreWrite(key, ver, ttl_ms, names, (key, text, str(ver)), None, "sample")


def batch(config: CacheConfig, ver: int, size: int = SIZE) -> list[StoreWrite]:
    return [entry(f"{config.prefix}{n}", ver) for n in range(size)]


def writer_of(store: RedisStore) -> ExclusiveWriter:
    writer = getattr(store._write, "__self__", None)
    assert isinstance(writer, ExclusiveWriter)
    return writer


async def exclusive(store: RedisStore, entries: Sequence[StoreWrite]) -> ExclusiveWriter:
    """Write the entries, and check that the store is their exclusive writer."""
    assert all(await store.write(entries))
    writer = writer_of(store)
    assert writer._layout == "sample"
    return writer


async def vers(store: RedisStore, entries: Sequence[StoreWrite]) -> list[int]:
    found = await store.read([item.key for item in entries])
    return [int(fields["ver"]) if fields else 0 for fields in found]


async def test_a_single_writer_uses_no_script(
    store: RedisStore, config: CacheConfig, connection: RedisConnection
) -> None:
    writer = await exclusive(store, batch(config, 1))
    for ver in range(2, 7):
        assert await store.write(iter(batch(config, ver))) == [True] * SIZE
    assert writer.transactions == 5
    newest = batch(config, 6)
    assert await store.read([item.key for item in newest]) == [item.fields for item in newest]
    ttls = await connection.call([("PTTL", item.key) for item in newest])
    assert all(0 < ttl_ms <= 60_000 for ttl_ms in ttls)


async def test_a_large_batch_is_several_transactions(
    store: RedisStore, config: CacheConfig
) -> None:
    writer = await exclusive(store, batch(config, 1, 501))
    assert await store.write(batch(config, 2, 501)) == [True] * 501
    assert writer.transactions == 6
    assert await vers(store, batch(config, 0, 501)) == [2] * 501


async def test_texts_of_any_kind_arrive_as_they_are(store: RedisStore, config: CacheConfig) -> None:
    texts = ["", " ", "a\r\nb", "é한", "x" * 127, "x" * 128, "%s $5", "\x00", "한" * 100]
    keys = [f"{config.prefix}{n}" for n in range(len(texts))]
    await exclusive(store, [entry(key, 1) for key in keys])
    expected = [entry(key, 2, text) for key, text in zip(keys, texts, strict=True)]
    assert await store.write(expected) == [True] * len(texts)
    assert writer_of(store).transactions == 1
    assert await store.read(keys) == [item.fields for item in expected]


async def test_a_greater_version_of_another_writer_stays(
    store: RedisStore, other: RedisStore, config: CacheConfig
) -> None:
    writer = await exclusive(store, batch(config, 1))
    assert await other.write([entry(f"{config.prefix}3", 9)]) == [True]
    acknowledged = await store.write(batch(config, 5))
    assert acknowledged == [n != 3 for n in range(SIZE)]
    assert writer.transactions == 0
    assert await vers(store, batch(config, 0)) == [9 if n == 3 else 5 for n in range(SIZE)]


async def test_exclusive_writing_resumes_when_the_other_writer_stops(
    store: RedisStore, other: RedisStore, config: CacheConfig
) -> None:
    writer = await exclusive(store, batch(config, 1))
    await other.write([entry(f"{config.prefix}3", 1)])
    for ver in range(2, 40):
        assert all(await store.write(batch(config, ver)))
    assert writer.transactions > 5


async def test_versions_that_go_back_are_refused_within_one_batch_too(
    store: RedisStore, config: CacheConfig
) -> None:
    await exclusive(store, batch(config, 1))
    key = f"{config.prefix}7"
    assert await store.write([entry(key, ver) for ver in (5, 3, 6, 6, 4)]) == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert await vers(store, [entry(key, 0)]) == [6]


async def test_an_expired_value_may_be_replaced_by_an_older_version(
    store: RedisStore, config: CacheConfig, connection: RedisConnection
) -> None:
    await exclusive(store, batch(config, 1))
    short = [msgspec.structs.replace(item, ttl_ms=30) for item in batch(config, 9)]
    assert all(await store.write(short))
    async with asyncio.timeout(30):
        while any(  # noqa: ASYNC110 - a fact of another process has no event
            await connection.call([("EXISTS", item.key) for item in short])
        ):
            await asyncio.sleep(0.005)
    assert await store.write(batch(config, 5)) == [True] * SIZE
    assert await vers(store, batch(config, 0)) == [5] * SIZE


async def test_a_write_beside_a_batch_keeps_its_greater_version(
    store: RedisStore, config: CacheConfig
) -> None:
    """Both are in flight at once, in either order."""
    await exclusive(store, batch(config, 1))
    for round_ in range(10):
        ver, key = 10 * round_ + 2, f"{config.prefix}3"
        one, many = store.write([entry(key, ver + 5)]), store.write(batch(config, ver))
        await asyncio.gather(*((one, many) if round_ % 2 else (many, one)))
        assert await vers(store, [entry(key, 0)]) == [ver + 5]


async def test_a_new_key_under_exclusive_writing_keeps_the_greater_version(
    store: RedisStore, config: CacheConfig
) -> None:
    """The first reply has arrived, the second has not."""
    await exclusive(store, batch(config, 1))
    key = f"{config.prefix}new"

    async def one_after_the_other() -> None:
        assert await store.write([entry(key, 12)]) == [True]
        assert await store.write([entry(key, 13)]) == [False]

    await asyncio.gather(one_after_the_other(), store.write([entry(key, 15)]))
    assert await vers(store, [entry(key, 0)]) == [15]


async def test_a_write_during_acquisition_is_not_lost(
    store: RedisStore, config: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, key = writer_of(store)._connection, f"{config.prefix}3"
    for _ in range(2):  # connection and script are set up
        assert await store.write([entry(key, 1)]) == [True]
    original_call = connection.call

    async def meanwhile(commands: Sequence[Command]) -> list[Any]:
        monkeypatch.undo()
        assert commands[0] == ("UNWATCH",)
        assert await store.write([entry(key, 12)]) == [True]
        return await original_call(commands)

    monkeypatch.setattr(connection, "call", meanwhile)
    assert all(await store.write(batch(config, 1)))
    assert connection.call == original_call
    await store.write(batch(config, 5))
    assert await vers(store, [entry(key, 0)]) == [12]


async def test_a_writer_that_comes_between_a_transaction_and_the_next_watch_is_noticed(
    store: RedisStore, other: RedisStore, config: CacheConfig
) -> None:
    writer = await exclusive(store, batch(config, 1))
    protocol = writer._protocol
    assert protocol is not None
    pieces = list(writer._transaction(enumerate(batch(config, 2)), [], []))
    data, replies = b"".join(piece for piece, _ in pieces), sum(count for _, count in pieces)
    watch = data.index(pack(("WATCH", writer.writer("sample")[0])))
    first = await protocol.send([(data[:watch], replies - 2)])
    assert await other.write([entry(f"{config.prefix}3", 9)]) == [True]
    assert writer._is_committed(first + await protocol.send([(data[watch:], 2)]))
    assert await store.write(batch(config, 5)) == [n != 3 for n in range(SIZE)]


async def test_an_old_connection_can_no_longer_write(
    store: RedisStore, config: CacheConfig
) -> None:
    """The server may execute its writes late, after newer values."""
    writer = await exclusive(store, batch(config, 1))
    old = writer._protocol
    assert old is not None
    writer._connection._protocol = None  # lost, and the server has not noticed
    assert all(await store.write(batch(config, 3)))
    late = [pack(("MULTI",)), pack(("HSET", f"{config.prefix}3", "ver", "2")), pack(("EXEC",))]
    *_, done = await old.send([(b"".join(late), 3)])
    assert done is None
    assert await vers(store, batch(config, 0)) == [3] * SIZE
    old.cut("the test is over")
    await old.lost.wait()


async def test_values_that_cannot_be_made_leave_no_transaction_open(
    store: RedisStore, config: CacheConfig
) -> None:
    def broken(after: int) -> Iterator[StoreWrite]:
        yield from batch(config, 5)[:after]
        raise ValueError("no more")

    for after in (0, 1, 19, 20, 25):
        await exclusive(store, batch(config, 1))
        with pytest.raises(ValueError, match="no more"):
            await store.write(broken(after))
        assert set(await vers(store, batch(config, 0))) == {1}
        writer_of(store)._backoff = 0


async def test_a_flush_during_exclusive_writing_is_survived(
    store: RedisStore, config: CacheConfig, connection: RedisConnection
) -> None:
    writer = await exclusive(store, batch(config, 1))
    await store.delete(await store.keys(config.prefix))
    await connection.call([("SCRIPT", "FLUSH")])
    assert await store.write(batch(config, 2)) == [True] * SIZE
    assert writer.transactions == 0
    assert await vers(store, batch(config, 0)) == [2] * SIZE


async def test_a_full_server_refuses_a_transaction_as_a_whole(
    valkey: ValkeyServer, config: CacheConfig
) -> None:
    assert valkey.tcp_url is not None
    async with RedisStore.open(valkey.tcp_url, config) as store:
        writer = await exclusive(store, batch(config, 1))
        admin = writer._connection
        await admin.call([("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")])
        with pytest.raises(OperationError, match="OOM"):
            await store.write(batch(config, 2))
        assert await vers(store, batch(config, 0)) == [1] * SIZE
        await admin.call([("CONFIG", "SET", "maxmemory", "0")])
        assert await store.write(batch(config, 3)) == [True] * SIZE


async def test_two_writers_under_cuts_and_cancellations_never_turn_a_version_back(
    valkey: ValkeyServer, config: CacheConfig
) -> None:
    """An acknowledged value, or a newer one, is stored; the server stops at times."""
    url, rng = valkey.tcp_url, random.Random(SEED)  # noqa: S311 - the same item time
    assert url is not None
    assert valkey.pid is not None
    hasty = msgspec.structs.replace(config, socket_timeout_ms=60, connect_timeout_ms=2000)
    acknowledged: dict[str, int] = {}
    next_ver = 0

    def some() -> list[StoreWrite]:
        nonlocal next_ver
        next_ver += 3
        names = rng.sample(range(SIZE), rng.randrange(1, SIZE))
        return [entry(f"{config.prefix}{n}", next_ver - rng.randrange(9)) for n in names]

    async def write(store: RedisStore) -> None:
        entries = [item for item in some() if item.ver >= 0]
        with suppress(UnreachableError):
            async with asyncio.timeout(30):
                for item, done in zip(entries, await store.write(entries), strict=True):
                    if done:
                        acknowledged[item.key] = max(item.ver, acknowledged.get(item.key, 0))

    async with (
        Proxy.in_thread(url) as proxy,
        RedisStore.open(proxy.url_of(url), hasty) as one,
        RedisStore.open(proxy.url_of(url), hasty) as two,
        RedisStore.open(url, config) as checker,
    ):
        for turn in range(250):
            writing = [asyncio.create_task(write(one))]
            if turn % 25 > 15:  # otherwise one of them writes alone
                writing += [asyncio.create_task(write(rng.choice((one, two)))) for _ in "ab"]
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            if rng.random() < 0.1:
                writing[-1].cancel()
            if rng.random() < 0.05:
                proxy.reset_all()
            if turn % 60 == 59:
                os.kill(valkey.pid, signal.SIGSTOP)
                await asyncio.sleep(0.1)
                os.kill(valkey.pid, signal.SIGCONT)
            for ended in await asyncio.gather(*writing, return_exceptions=True):
                if ended is not None and not isinstance(ended, asyncio.CancelledError):
                    raise ended
            if turn % 5 == 0:
                known = dict(acknowledged)
                found = await checker.read(list(known))
                for (key, ver), fields in zip(known.items(), found, strict=True):
                    assert fields is not None
                    assert int(fields["ver"]) >= ver, key
        assert writer_of(one).transactions > 0
