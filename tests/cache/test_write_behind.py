"""Write-behind queue: newest per key, bounded, never later than the TTL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.cache import BreakerConfig, Cache, CacheConfig, Ttls
from qts.cache.call_policy import CallPolicy, WriteBehindQueue
from qts.cache.redis import RedisStore
from qts.cache.store import MemoryStore, StoreWrite
from qts.domain import ManualClock, Secret, UnreachableError
from tests.cache import samples
from tests.cache.conftest import until
from tests.cache.loader import MemoryLoader
from tests.cache.proxy import Proxy


class UnreachableStore(MemoryStore):
    """Store that can be unreachable."""

    is_down = False

    async def write(self, entries: list[StoreWrite]) -> list[bool]:  # type: ignore[override]
        if self.is_down:
            raise UnreachableError("unplugged")
        return await super().write(entries)


def write_behind(store: MemoryStore, clock: ManualClock, **settings: int) -> WriteBehindQueue:
    config = msgspec.structs.replace(
        CacheConfig(breaker=BreakerConfig(failures=1000)),
        **settings,
    )
    return WriteBehindQueue(store, CallPolicy(config, clock), config, clock)


@pytest.fixture
def store(clock: ManualClock) -> UnreachableStore:
    return UnreachableStore(clock)


async def test_failed_writes_are_written_when_redis_is_back(
    store: UnreachableStore, clock: ManualClock
) -> None:
    writer = write_behind(store, clock)
    store.is_down = True
    writer.put("a", samples.order(ver=1), 60_000)
    assert not await writer.flush()
    writer.put("a", samples.order(filled=60, ver=2), 60_000)
    writer.put("b", samples.order(ver=1), 60_000)
    assert not await writer.flush()
    assert writer.depth == 2
    store.is_down = False
    assert await writer.flush()
    found = await store.read(["a", "b"])
    assert [each and each["filled_qty"] for each in found] == ["60", "50"]


class FailingStore(MemoryStore):
    """Store whose first write fails once `reply` is set."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.writes = 0
        self.asked = asyncio.Event()
        self.reply = asyncio.Event()

    async def write(self, entries: list[StoreWrite]) -> list[bool]:  # type: ignore[override]
        self.writes += 1
        if self.writes == 1:
            self.asked.set()
            await self.reply.wait()
            raise UnreachableError("unplugged")
        return await super().write(entries)


async def test_a_value_dropped_while_its_write_fails_stays_dropped(clock: ManualClock) -> None:
    """An invalidated value that came back would be read from Redis until its TTL is over."""
    store = FailingStore(clock)
    writer = write_behind(store, clock)
    writer.put("dropped", samples.order(ver=1), 60_000)
    writer.put("replaced", samples.order(ver=1), 60_000)
    writer.put("kept", samples.order(ver=1), 60_000)
    flushing = asyncio.create_task(writer.flush())
    await store.asked.wait()
    writer.drop("dropped")
    writer.drop("replaced")
    writer.put("replaced", samples.order(filled=60, ver=2), 60_000)
    store.reply.set()
    assert not await flushing
    assert await writer.flush()
    assert sorted(await store.keys("")) == ["kept", "replaced"]
    (replaced,) = await store.read(["replaced"])
    assert replaced is not None
    assert replaced["filled_qty"] == "60"


async def test_a_late_batch_does_not_write_expired_values(
    store: UnreachableStore, clock: ManualClock
) -> None:
    writer = write_behind(store, clock)
    writer.put("price", samples.price(ver=1), 100)
    writer.put("order", samples.order(ver=1), 60_000)
    await clock.advance(0.2)
    await writer.flush()
    assert await store.keys("") == ["order"]
    await clock.advance(59.7)
    assert await store.keys("") == ["order"]
    await clock.advance(0.1)
    assert await store.keys("") == []  # its TTL began when it was put


async def test_the_queue_is_bounded_and_the_oldest_is_displaced(
    store: UnreachableStore, clock: ManualClock
) -> None:
    writer = write_behind(store, clock, queue_max=100)
    store.is_down = True
    for n in range(250):
        writer.put(f"k{n:03}", samples.order(ver=1), 60_000)
        if n % 60 == 0:
            await writer.flush()
    assert writer.depth == 100
    assert writer.dropped == 150
    store.is_down = False
    await writer.flush()
    assert await store.keys("") == [f"k{n:03}" for n in range(150, 250)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
async def test_the_last_value_put_is_the_one_kept(steps: list[tuple[str, bool]]) -> None:
    """In any order of flushes, successful or not."""
    clock = ManualClock()
    store = UnreachableStore(clock)
    writer = write_behind(store, clock)
    newest: dict[str, str] = {}
    for ver, (key, works) in enumerate(steps, 1):
        writer.put(key, samples.order(filled=ver, ver=ver), 60_000)
        newest[key] = str(ver)
        store.is_down = not works
        await writer.flush()
    store.is_down = False
    await writer.flush()
    found = await store.read(list(newest))
    assert [each and each["filled_qty"] for each in found] == list(newest.values())


async def test_thousands_of_ticks_reach_a_real_server(
    opened: Callable[..., Awaitable[Cache]], shared: RedisStore, patient: CacheConfig
) -> None:
    long = msgspec.structs.replace(patient.ttl, price_ms=30_000)
    config = msgspec.structs.replace(patient, ttl=long, write_ms=20_000)
    cache = await opened(shared, MemoryLoader(), config)
    for last in (1000, 2000):
        for n in range(1500):
            cache.prices.push(samples.price(f"S{n}", last))
    await until(lambda: cache.status().queue.depth == 0)
    other = await opened(shared, MemoryLoader(), config)
    for n in (0, 700, 1499):
        assert (await other.prices.get(f"S{n}")).last == 2000
    assert len(await shared.keys(config.prefix + "price:")) == 1500


async def test_a_push_returns_at_once_while_redis_hangs(
    opened: Callable[..., Awaitable[Cache]], valkey_url: Secret, config: CacheConfig
) -> None:
    config = msgspec.structs.replace(config, ttl=Ttls(price_ms=30_000))
    async with Proxy.to_url(valkey_url) as proxy:
        url = proxy.url_of(valkey_url)
        async with RedisStore.open(url, config) as store:
            cache = await opened(store, MemoryLoader(), config)
            proxy.silent = True
            for n in range(500):
                assert cache.prices.push(samples.price(f"S{n}"))
                assert cache.prices.peek(f"S{n}") is not None
            await until(lambda: cache.status().queue.failed > 0)
            proxy.heal()
            proxy.reset_all()
