"""A writer alone needs no script; with a second one around, the greater version still stays."""

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
from qts.cache.address import Command, pack
from qts.cache.connection import RedisConnection
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
async def wire(valkey_url: Secret, config: CacheConfig) -> AsyncIterator[RedisConnection]:
    wire = RedisConnection(valkey_url, config)
    yield wire
    await wire.close()


def entry(key: str, ver: int, text: str = "x", ttl_ms: int = 60_000) -> StoreWrite:
    names = ("key", "text", "ver")
    return StoreWrite(key, ver, ttl_ms, names, (key, text, str(ver)), None, "sample")


def batch(config: CacheConfig, ver: int, size: int = SIZE) -> list[StoreWrite]:
    return [entry(f"{config.prefix}{n}", ver) for n in range(size)]


def claim_of(store: RedisStore) -> ExclusiveWriter:
    claim = getattr(store._write, "__self__", None)
    assert isinstance(claim, ExclusiveWriter)
    return claim


async def claimed(store: RedisStore, entries: Sequence[StoreWrite]) -> ExclusiveWriter:
    """The store has written them, and holds the claim on their kind."""
    assert all(await store.write(entries))
    claim = claim_of(store)
    assert claim._layout == "sample"
    return claim


async def vers(store: RedisStore, entries: Sequence[StoreWrite]) -> list[int]:
    found = await store.read([each.key for each in entries])
    return [int(fields["ver"]) if fields else 0 for fields in found]


async def test_a_writer_alone_goes_without_a_script(
    store: RedisStore, config: CacheConfig, wire: RedisConnection
) -> None:
    claim = await claimed(store, batch(config, 1))
    for ver in range(2, 7):
        assert await store.write(iter(batch(config, ver))) == [True] * SIZE
    assert claim.served == 5
    newest = batch(config, 6)
    assert await store.read([each.key for each in newest]) == [each.fields for each in newest]
    lives = await wire.call([("PTTL", each.key) for each in newest])
    assert all(0 < life_ms <= 60_000 for life_ms in lives)


async def test_a_large_batch_is_several_transactions(
    store: RedisStore, config: CacheConfig
) -> None:
    claim = await claimed(store, batch(config, 1, 501))
    assert await store.write(batch(config, 2, 501)) == [True] * 501
    assert claim.served == 6
    assert await vers(store, batch(config, 0, 501)) == [2] * 501


async def test_texts_of_any_kind_arrive_as_they_are(store: RedisStore, config: CacheConfig) -> None:
    texts = ["", " ", "a\r\nb", "é한", "x" * 127, "x" * 128, "%s $5", "\x00", "한" * 100]
    keys = [f"{config.prefix}{n}" for n in range(len(texts))]
    await claimed(store, [entry(key, 1) for key in keys])
    wanted = [entry(key, 2, text) for key, text in zip(keys, texts, strict=True)]
    assert await store.write(wanted) == [True] * len(texts)
    assert claim_of(store).served == 1
    assert await store.read(keys) == [each.fields for each in wanted]


async def test_a_greater_version_of_another_writer_stays(
    store: RedisStore, other: RedisStore, config: CacheConfig
) -> None:
    claim = await claimed(store, batch(config, 1))
    assert await other.write([entry(f"{config.prefix}3", 9)]) == [True]
    told = await store.write(batch(config, 5))
    assert told == [n != 3 for n in range(SIZE)]
    assert claim.served == 0
    assert await vers(store, batch(config, 0)) == [9 if n == 3 else 5 for n in range(SIZE)]


async def test_a_claim_that_was_lost_comes_back_when_the_other_writer_is_silent(
    store: RedisStore, other: RedisStore, config: CacheConfig
) -> None:
    claim = await claimed(store, batch(config, 1))
    await other.write([entry(f"{config.prefix}3", 1)])
    for ver in range(2, 40):
        assert all(await store.write(batch(config, ver)))
    assert claim.served > 5


async def test_versions_that_go_back_are_refused_within_one_batch_too(
    store: RedisStore, config: CacheConfig
) -> None:
    await claimed(store, batch(config, 1))
    key = f"{config.prefix}7"
    assert await store.write([entry(key, ver) for ver in (5, 3, 6, 6, 4)]) == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert await vers(store, [entry(key, 0)]) == [6]


async def test_what_has_expired_may_be_older_again(
    store: RedisStore, config: CacheConfig, wire: RedisConnection
) -> None:
    await claimed(store, batch(config, 1))
    short = [msgspec.structs.replace(each, ttl_ms=30) for each in batch(config, 9)]
    assert all(await store.write(short))
    async with asyncio.timeout(30):
        while any(  # noqa: ASYNC110 - a fact of another process has no event
            await wire.call([("EXISTS", each.key) for each in short])
        ):
            await asyncio.sleep(0.005)
    assert await store.write(batch(config, 5)) == [True] * SIZE
    assert await vers(store, batch(config, 0)) == [5] * SIZE


async def test_a_write_beside_a_batch_keeps_its_greater_version(
    store: RedisStore, config: CacheConfig
) -> None:
    """Both are on their way at once, in either order."""
    await claimed(store, batch(config, 1))
    for round_ in range(10):
        ver, key = 10 * round_ + 2, f"{config.prefix}3"
        one, many = store.write([entry(key, ver + 5)]), store.write(batch(config, ver))
        await asyncio.gather(*((one, many) if round_ % 2 else (many, one)))
        assert await vers(store, [entry(key, 0)]) == [ver + 5]


async def test_a_key_that_is_new_under_a_claim_keeps_the_greater_version(
    store: RedisStore, config: CacheConfig
) -> None:
    """The first answer is here, and the second one has yet to be heard."""
    await claimed(store, batch(config, 1))
    key = f"{config.prefix}new"

    async def one_after_the_other() -> None:
        assert await store.write([entry(key, 12)]) == [True]
        assert await store.write([entry(key, 13)]) == [False]

    await asyncio.gather(one_after_the_other(), store.write([entry(key, 15)]))
    assert await vers(store, [entry(key, 0)]) == [15]


async def test_a_write_while_a_claim_is_taken_is_not_forgotten(
    store: RedisStore, config: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, key = claim_of(store)._wire, f"{config.prefix}3"
    for _ in range(2):  # the connection is known, its script as well
        assert await store.write([entry(key, 1)]) == [True]
    taking = wire.call

    async def meanwhile(commands: Sequence[Command]) -> list[Any]:
        monkeypatch.undo()
        assert commands[0] == ("UNWATCH",)
        assert await store.write([entry(key, 12)]) == [True]
        return await taking(commands)

    monkeypatch.setattr(wire, "call", meanwhile)
    assert all(await store.write(batch(config, 1)))
    assert wire.call == taking
    await store.write(batch(config, 5))
    assert await vers(store, [entry(key, 0)]) == [12]


async def test_a_writer_that_comes_between_a_transaction_and_the_next_watch_is_noticed(
    store: RedisStore, other: RedisStore, config: CacheConfig
) -> None:
    claim = await claimed(store, batch(config, 1))
    line = claim._line
    assert line is not None
    pieces = list(claim._transaction(enumerate(batch(config, 2)), [], []))
    said, replies = b"".join(piece for piece, _ in pieces), sum(count for _, count in pieces)
    watch = said.index(pack(("WATCH", claim.writer("sample")[0])))
    first = await line.send([(said[:watch], replies - 2)])
    assert await other.write([entry(f"{config.prefix}3", 9)]) == [True]
    assert claim._is_done(first + await line.send([(said[watch:], 2)]))
    assert await store.write(batch(config, 5)) == [n != 3 for n in range(SIZE)]


async def test_an_old_connection_can_no_longer_write(
    store: RedisStore, config: CacheConfig
) -> None:
    """What the server was told over it may be done late, after newer values."""
    claim = await claimed(store, batch(config, 1))
    old = claim._line
    assert old is not None
    claim._wire._line = None  # lost, and the server has not noticed
    assert all(await store.write(batch(config, 3)))
    late = [pack(("MULTI",)), pack(("HSET", f"{config.prefix}3", "ver", "2")), pack(("EXEC",))]
    *_, done = await old.send([(b"".join(late), 3)])
    assert done is None
    assert await vers(store, batch(config, 0)) == [3] * SIZE
    old.cut("the test is over")
    await old.gone.wait()


async def test_values_that_cannot_be_made_leave_no_transaction_open(
    store: RedisStore, config: CacheConfig
) -> None:
    def broken(after: int) -> Iterator[StoreWrite]:
        yield from batch(config, 5)[:after]
        raise ValueError("no more")

    for after in (0, 1, 19, 20, 25):
        await claimed(store, batch(config, 1))
        with pytest.raises(ValueError, match="no more"):
            await store.write(broken(after))
        assert set(await vers(store, batch(config, 0))) == {1}
        claim_of(store)._wait = 0


async def test_all_is_flushed_under_a_claim(
    store: RedisStore, config: CacheConfig, wire: RedisConnection
) -> None:
    claim = await claimed(store, batch(config, 1))
    await store.delete(await store.keys(config.prefix))
    await wire.call([("SCRIPT", "FLUSH")])
    assert await store.write(batch(config, 2)) == [True] * SIZE
    assert claim.served == 0
    assert await vers(store, batch(config, 0)) == [2] * SIZE


async def test_a_full_server_refuses_a_transaction_as_a_whole(
    valkey: ValkeyServer, config: CacheConfig
) -> None:
    assert valkey.tcp_url is not None
    async with RedisStore.open(valkey.tcp_url, config) as store:
        claim = await claimed(store, batch(config, 1))
        admin = claim._wire
        await admin.call([("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")])
        with pytest.raises(OperationError, match="OOM"):
            await store.write(batch(config, 2))
        assert await vers(store, batch(config, 0)) == [1] * SIZE
        await admin.call([("CONFIG", "SET", "maxmemory", "0")])
        assert await store.write(batch(config, 3)) == [True] * SIZE


async def test_two_writers_under_cuts_and_cancellations_never_turn_a_version_back(
    valkey: ValkeyServer, config: CacheConfig
) -> None:
    """Whatever was acknowledged is there, or something newer is; the server stops at times."""
    url, chance = valkey.tcp_url, random.Random(SEED)  # noqa: S311 - the same each time
    assert url is not None
    assert valkey.pid is not None
    hasty = msgspec.structs.replace(config, socket_timeout_ms=60, connect_timeout_ms=2000)
    told: dict[str, int] = {}
    next_ver = 0

    def some() -> list[StoreWrite]:
        nonlocal next_ver
        next_ver += 3
        names = chance.sample(range(SIZE), chance.randrange(1, SIZE))
        return [entry(f"{config.prefix}{n}", next_ver - chance.randrange(9)) for n in names]

    async def write(store: RedisStore) -> None:
        entries = [each for each in some() if each.ver >= 0]
        with suppress(UnreachableError):
            async with asyncio.timeout(30):
                for each, done in zip(entries, await store.write(entries), strict=True):
                    if done:
                        told[each.key] = max(each.ver, told.get(each.key, 0))

    async with (
        Proxy.in_thread(url) as proxy,
        RedisStore.open(proxy.url_of(url), hasty) as one,
        RedisStore.open(proxy.url_of(url), hasty) as two,
        RedisStore.open(url, config) as judge,
    ):
        for turn in range(250):
            writing = [asyncio.create_task(write(one))]
            if turn % 25 > 15:  # for a while one of them is alone
                writing += [asyncio.create_task(write(chance.choice((one, two)))) for _ in "ab"]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if chance.random() < 0.1:
                writing[-1].cancel()
            if chance.random() < 0.05:
                proxy.reset_all()
            if turn % 60 == 59:
                os.kill(valkey.pid, signal.SIGSTOP)
                await asyncio.sleep(0.1)
                os.kill(valkey.pid, signal.SIGCONT)
            for ended in await asyncio.gather(*writing, return_exceptions=True):
                if ended is not None and not isinstance(ended, asyncio.CancelledError):
                    raise ended
            if turn % 5 == 0:
                known = dict(told)
                found = await judge.read(list(known))
                for (key, ver), fields in zip(known.items(), found, strict=True):
                    assert fields is not None
                    assert int(fields["ver"]) >= ver, key
        assert claim_of(one).served > 0
