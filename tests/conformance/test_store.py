"""Conformance suite of every CacheStore: memory, a server, a cluster of three and three.

REDIS_URL adds one more server, whatever its version.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from qts.cache import CacheConfig
from qts.cache.redis import RedisStore
from qts.cache.store import (
    LIMIT_REACHED,
    UNKNOWN_COUNT,
    BookSides,
    CacheStore,
    CountRequest,
    MemoryStore,
    StoreWrite,
)
from qts.domain import Secret
from tests.cache.cluster import Cluster

KINDS = ["memory", "server", "cluster", *(["named"] if os.environ.get("REDIS_URL") else [])]

_runs = itertools.count()


@pytest.fixture(scope="module")
async def stores(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[[str], Awaitable[CacheStore]]]:
    """Open each store at first use."""
    opened: dict[str, CacheStore] = {}
    patient = CacheConfig(socket_timeout_ms=5000, connect_timeout_ms=5000)
    async with AsyncExitStack() as stack:

        async def open_store(kind: str) -> CacheStore:
            if kind == "memory":
                return MemoryStore()
            config = patient
            if kind == "cluster":
                place = tmp_path_factory.mktemp("cluster")
                url = (await stack.enter_async_context(Cluster.formed(place))).url
                config = CacheConfig(cluster=True, socket_timeout_ms=5000, connect_timeout_ms=5000)
            elif kind == "named":
                url = Secret(os.environ["REDIS_URL"])
            else:
                url = request.getfixturevalue("valkey_url")
            return await stack.enter_async_context(RedisStore.open(url, config))

        async def ask(kind: str) -> CacheStore:
            if kind not in opened:
                opened[kind] = await open_store(kind)
            return opened[kind]

        yield ask


@pytest.fixture(params=KINDS)
async def store(
    request: pytest.FixtureRequest, stores: Callable[[str], Awaitable[CacheStore]]
) -> CacheStore:
    return await stores(request.param)


@pytest.fixture
async def prefix(store: CacheStore) -> AsyncIterator[str]:
    """Keys of this test alone, removed afterwards."""
    mine = f"qts-test-{os.getpid()}-{next(_runs)}:"
    yield mine
    await store.delete(await store.keys(mine))


def entry(key: str, ver: int, ttl_ms: int = 10_000, **fields: str) -> StoreWrite:
    return StoreWrite.of(key, ver, ttl_ms, {"ver": str(ver), **fields})


def book(key: str, ver: int, best: int, ttl_ms: int = 10_000) -> StoreWrite:
    sides = BookSides([(best, f"{ver}"), (best - 1, "7")], [(best + 1, f"{ver}"), (best + 2, "7")])
    return StoreWrite.of(key, ver, ttl_ms, {"ver": str(ver), "symbol": "A"}, sides)


async def wait_expired(store: CacheStore, key: str, *, within_s: float) -> float:
    """Seconds until the key was no longer read."""
    began = time.monotonic()
    while (await store.read([key]))[0] is not None:
        assert time.monotonic() - began < within_s, "the value outlives its TTL"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def wait_count_expired(store: CacheStore, count: CountRequest) -> None:
    deadline = time.monotonic() + 30
    while await store.count(count) != UNKNOWN_COUNT:
        assert time.monotonic() < deadline, "the count outlives its day"
        await asyncio.sleep(0.005)


async def test_what_was_written_is_read_in_the_order_asked(store: CacheStore, prefix: str) -> None:
    entries = [entry(f"{prefix}{n}", 1, text=f"value {n}") for n in range(120)]
    assert await store.write(entries) == [True] * 120
    found = await store.read([each.key for each in reversed(entries)])
    assert found == [each.fields for each in reversed(entries)]


async def test_what_is_not_there_is_none(store: CacheStore, prefix: str) -> None:
    await store.write([entry(prefix + "here", 1)])
    assert await store.read([prefix + "a", prefix + "here", prefix + "b"]) == [
        None,
        {"ver": "1"},
        None,
    ]
    assert await store.read([]) == []
    assert await store.write([]) == []
    assert await store.read_book(prefix + "{none}", 5) is None


@pytest.mark.parametrize("ttl_ms", [50, 100])
async def test_a_ttl_below_a_second_holds(store: CacheStore, prefix: str, ttl_ms: int) -> None:
    await store.write([entry(prefix + "x", 1, ttl_ms)])
    assert (await store.read([prefix + "x"]))[0] is not None
    lived_s = await wait_expired(store, prefix + "x", within_s=30.0)
    assert lived_s > ttl_ms / 1000 * 0.5  # the machine may be late, the server never early


async def test_a_new_write_replaces_every_field(store: CacheStore, prefix: str) -> None:
    await store.write([entry(prefix + "x", 1, old="1")])
    await store.write([entry(prefix + "x", 2, new="2")])
    assert await store.read([prefix + "x"]) == [{"ver": "2", "new": "2"}]


async def test_the_greater_version_stays(store: CacheStore, prefix: str) -> None:
    key = prefix + "x"
    big = 2**53 - 2  # neighbours that a float could not tell apart one bit higher
    assert await store.write([entry(key, big + 1, text="new")]) == [True]
    assert await store.write([entry(key, big, text="old")]) == [False]
    assert (await store.read([key]))[0] == {"ver": str(big + 1), "text": "new"}


async def test_the_same_version_again_renews_the_ttl(store: CacheStore, prefix: str) -> None:
    key = prefix + "x"
    await store.write([entry(key, 1, 50)])
    assert await store.write([entry(key, 1, 10_000)]) == [True]
    await asyncio.sleep(0.08)
    assert (await store.read([key]))[0] is not None


async def test_writers_in_any_order_leave_the_newest(store: CacheStore, prefix: str) -> None:
    key = prefix + "x"
    vers = [7, 3, 9, 1, 8, 2, 10, 4]
    await asyncio.gather(*(store.write([entry(key, ver, text=str(ver))]) for ver in vers))
    assert await store.read([key]) == [{"ver": "10", "text": "10"}]


def alike(key: str, ver: int, ttl_ms: int = 10_000) -> StoreWrite:
    """All of its kind have the same fields."""
    return StoreWrite(key, ver, ttl_ms, ("key", "ver"), (key, str(ver)), None, "conformance")


async def test_batches_of_one_kind_one_after_the_other_leave_the_newest(
    store: CacheStore, prefix: str
) -> None:
    keys = [f"{prefix}{n}" for n in range(130)]
    for ver in (1, 2, 5, 5):
        assert await store.write(alike(key, ver) for key in keys) == [True] * 130
    mixed = [alike(key, 4 if n % 10 == 0 else 6) for n, key in enumerate(keys)]
    assert await store.write(mixed) == [n % 10 != 0 for n in range(130)]
    found = await store.read(keys)
    assert found == [{"key": key, "ver": "5" if n % 10 == 0 else "6"} for n, key in enumerate(keys)]


async def test_a_ttl_holds_in_the_second_batch_of_a_kind_too(
    store: CacheStore, prefix: str
) -> None:
    keys = [f"{prefix}{n}" for n in range(20)]
    for ver in (1, 2, 3):
        await store.write(alike(key, ver, 50 if ver == 3 else 10_000) for key in keys)
    for key in keys:
        await wait_expired(store, key, within_s=30.0)
    assert await store.write(alike(key, 2) for key in keys) == [True] * 20


async def test_the_best_price_comes_first_not_the_largest(store: CacheStore, prefix: str) -> None:
    sides = BookSides(
        [(990, "9"), (1000, "1"), (998, "500")], [(1010, "3"), (1002, "1"), (1005, "900")]
    )
    await store.write([StoreWrite.of(prefix + "{b}", 1, 10_000, {"ver": "1"}, sides)])
    found = await store.read_book(prefix + "{b}", 2)
    assert found is not None
    fields, top = found
    assert fields == {"ver": "1"}
    assert list(top.bids) == [(1000, "1"), (998, "500")]
    assert list(top.asks) == [(1002, "1"), (1005, "900")]


async def test_an_empty_side_stays_empty(store: CacheStore, prefix: str) -> None:
    await store.write([book(prefix + "{b}", 1, 100)])
    await store.write(
        [StoreWrite.of(prefix + "{b}", 2, 10_000, {"ver": "2"}, BookSides([], [(7, "1")]))]
    )
    found = await store.read_book(prefix + "{b}", 5)
    assert found is not None
    assert (list(found[1].bids), list(found[1].asks)) == ([], [(7, "1")])


async def test_an_older_book_does_not_replace_a_newer_one(store: CacheStore, prefix: str) -> None:
    assert await store.write([book(prefix + "{b}", 2, 200), book(prefix + "{b}", 1, 100)]) == [
        True,
        False,
    ]
    found = await store.read_book(prefix + "{b}", 1)
    assert found is not None
    assert list(found[1].bids) == [(200, "2")]


async def test_a_book_expires_as_a_whole(store: CacheStore, prefix: str) -> None:
    await store.write([book(prefix + "{b}", 1, 100, ttl_ms=50)])
    await wait_expired(store, prefix + "{b}", within_s=30.0)
    assert await store.read_book(prefix + "{b}", 5) is None
    assert await store.keys(prefix) == []


async def test_bid_and_ask_are_never_seen_half_updated(store: CacheStore, prefix: str) -> None:
    """Volume and price on both sides name the version; eight readers compare them."""
    key, done, seen = prefix + "{b}", asyncio.Event(), set[int]()

    async def look() -> None:
        while not done.is_set():
            if found := await store.read_book(key, 1):
                ver = int(found[0]["ver"])
                seen.add(ver)
                assert list(found[1].bids) == [(1000 + 10 * ver, str(ver))]
                assert list(found[1].asks) == [(1001 + 10 * ver, str(ver))]
            await asyncio.sleep(0)

    readers = [asyncio.create_task(look()) for _ in range(8)]
    for ver in range(1, 150):
        await store.write([book(key, ver, 1000 + 10 * ver)])
        await asyncio.sleep(0)
    done.set()
    await asyncio.gather(*readers)
    assert len(seen) > 5


async def test_delete_returns_how_many_existed(store: CacheStore, prefix: str) -> None:
    await store.write([entry(prefix + name, 1) for name in "ab"])
    assert await store.delete([prefix + name for name in "abc"]) == 2
    assert await store.read([prefix + "a"]) == [None]


async def test_keys_are_those_of_the_prefix(store: CacheStore, prefix: str) -> None:
    await store.write([entry(prefix + name, 1) for name in ("price:A", "price:B", "pos:A")])
    await store.write([book(prefix + "book:{A}", 1, 100)])
    assert await store.keys(prefix + "price:") == [prefix + "price:A", prefix + "price:B"]
    tail = {key.removeprefix(prefix) for key in await store.keys(prefix)}
    assert tail == {"price:A", "price:B", "pos:A", "book:{A}", "book:{A}:bid", "book:{A}:ask"}


def tomorrow() -> int:
    return int(time.time() * 1000) + 86_400_000


async def test_an_unknown_count_is_not_started_without_known_members(
    store: CacheStore, prefix: str
) -> None:
    count = CountRequest(prefix + "n", "t3", 10, tomorrow())
    assert await store.count(count) == UNKNOWN_COUNT
    assert await store.count(count) == UNKNOWN_COUNT
    assert await store.count(count, {"t1", "t2"}) == 3
    assert await store.count(CountRequest(prefix + "n", "t4", 10, tomorrow())) == 4


async def test_a_member_is_counted_once(store: CacheStore, prefix: str) -> None:
    count = CountRequest(prefix + "n", "t1", 10, tomorrow())
    assert [await store.count(count, ()) for _ in range(3)] == [1, 1, 1]


async def test_the_limit_holds_for_callers_at_once(store: CacheStore, prefix: str) -> None:
    asked = [CountRequest(prefix + "n", f"t{n}", 5, tomorrow()) for n in range(20)]
    answers = await asyncio.gather(*(store.count(each, ()) for each in asked))
    assert sorted(answers) == [LIMIT_REACHED] * 15 + [1, 2, 3, 4, 5]
    again = await asyncio.gather(*(store.count(each) for each in asked))
    assert sorted(again) == [LIMIT_REACHED] * 15 + [5] * 5


async def test_a_count_ends_at_its_moment(store: CacheStore, prefix: str) -> None:
    until = int(time.time() * 1000) + 80
    assert await store.count(CountRequest(prefix + "n", "t1", 5, until), ()) == 1
    await wait_count_expired(store, CountRequest(prefix + "n", "t1", 5, until))


async def test_health_names_a_version(store: CacheStore) -> None:
    health = await store.health()
    assert health.version
    assert health.used_memory >= 0
    assert 0.0 <= health.pool_use <= 1.0
