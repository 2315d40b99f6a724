"""The trade count of a day is exact, whatever Redis does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from qts.cache import Cache, CacheConfig, TradeIds
from qts.cache.redis import RedisStore
from qts.cache.store import CountRequest, MemoryStore
from qts.domain import ManualClock, RefusedError, TradeLimitExceededError, UnreachableError
from qts.embedded import ValkeyServer
from tests.cache.conftest import until
from tests.cache.loader import MemoryLoader

Opened = Callable[..., Awaitable[Cache]]


@pytest.fixture
def ends_at() -> datetime:
    return datetime.now(UTC) + timedelta(hours=3)


def known(ends_at: datetime, *ids: str) -> TradeIds:
    return TradeIds(day=f"account/{ends_at:%Y-%m-%dT%H}", ids=frozenset(ids))


async def test_a_trade_is_counted_once_and_only_when_allowed(
    opened: Opened, shared: RedisStore, patient: CacheConfig, ends_at: datetime
) -> None:
    cache = await opened(shared, MemoryLoader(), patient)
    for n in range(1, 4):
        assert await cache.trades.count("account", f"t{n}", 3, ends_at) == n
        assert await cache.trades.count("account", f"t{n}", 3, ends_at) == n
    with pytest.raises(TradeLimitExceededError, match="daily limit of 3 trades"):
        await cache.trades.count("account", "t4", 3, ends_at)
    assert await cache.trades.count("account", "t4", 4, ends_at) == 4  # it had not been counted


async def test_a_hundred_trades_across_stalls_are_a_hundred(
    opened: Opened, valkey: ValkeyServer, config: CacheConfig, ends_at: datetime
) -> None:
    """Each stall outlasts the timeout of a call, so that calls are sent more than once."""
    assert valkey.tcp_url is not None
    assert valkey.pid is not None
    pid, counted = valkey.pid, 0
    async with RedisStore.open(valkey.tcp_url, config) as store:
        cache = await opened(store, MemoryLoader(), config)

        async def stall() -> None:
            while counted < 95:
                os.kill(pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(0.25)
                finally:
                    os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(0.05)

        stalling = asyncio.create_task(stall())
        for n in range(100):
            counted = await cache.trades.count("account", f"t{n}", 100, ends_at)
            await asyncio.sleep(0.005)
        await stalling
        assert counted == 100
        # The last trades may have been counted while the circuit was open; the next call that
        # reaches Redis adds them.
        await until(lambda: cache.status().breaker == "closed")
        with pytest.raises(TradeLimitExceededError):
            await cache.trades.count("account", "one-more", 100, ends_at)
        (key,) = await store.keys(f"{config.prefix}daily")
        total = await store.count(_count(key, ends_at))
        assert total == 100, "Redis itself has counted each of them once"


def _count(key: str, ends_at: datetime) -> CountRequest:
    return CountRequest(key, "t0", 100, int(ends_at.timestamp() * 1000))


async def test_a_lost_count_is_rebuilt_from_known_ids(
    opened: Opened, shared: RedisStore, patient: CacheConfig, ends_at: datetime
) -> None:
    loader = MemoryLoader(known(ends_at, "t1", "t2"))
    cache = await opened(shared, loader, patient)
    assert await cache.trades.count("account", "t3", 4, ends_at) == 3
    await shared.delete(await shared.keys(patient.prefix + "daily"))
    # t3 is not in the database yet, and is kept in memory.
    assert await cache.trades.count("account", "t4", 4, ends_at) == 4
    await shared.delete(await shared.keys(patient.prefix + "daily"))
    with pytest.raises(TradeLimitExceededError):
        await cache.trades.count("account", "t5", 4, ends_at)


async def test_without_redis_the_database_decides(
    opened: Opened, valkey: ValkeyServer, config: CacheConfig, ends_at: datetime
) -> None:
    assert valkey.tcp_url is not None
    loader = MemoryLoader(known(ends_at, "t1", "t2"))
    async with RedisStore.open(valkey.tcp_url, config) as store:
        valkey.stop()
        cache = await opened(store, loader, config)
        assert await cache.trades.count("account", "t3", 4, ends_at) == 3
        assert await cache.trades.count("account", "t1", 4, ends_at) == 3
        assert await cache.trades.count("account", "t4", 4, ends_at) == 4
        with pytest.raises(TradeLimitExceededError):
            await cache.trades.count("account", "t5", 4, ends_at)
        await asyncio.to_thread(valkey.start)
        await until(lambda: cache.status().breaker == "closed")
        # Redis came back empty, and another process counts.
        assert await cache.trades.count("account", "t5", 5, ends_at) == 5
        assert await cache.trades.count("account", "t1", 5, ends_at) == 5


async def test_trades_counted_without_redis_are_added_to_it_later(
    opened: Opened, valkey: ValkeyServer, config: CacheConfig, ends_at: datetime
) -> None:
    assert valkey.tcp_url is not None
    assert valkey.pid is not None
    async with RedisStore.open(valkey.tcp_url, config) as store:
        cache = await opened(store, MemoryLoader(), config)
        assert await cache.trades.count("account", "t1", 9, ends_at) == 1
        for _ in range(5):
            cache._tiers.policy.breaker.record_failure()
        assert await cache.trades.count("account", "t2", 9, ends_at) == 2
        await until(lambda: cache.status().breaker == "closed")
        assert await cache.trades.count("account", "t3", 9, ends_at) == 3
        other = await opened(store, MemoryLoader(), config)
        assert await other.trades.count("account", "t4", 9, ends_at) == 4


class SlowStore(MemoryStore):
    """Store whose counts wait for `replies`; those of `unreachable` trades fail at once."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.replies = asyncio.Event()
        self.replies.set()
        self.asked = asyncio.Event()
        self.unreachable: set[str] = set()

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        self.asked.set()
        if count.member in self.unreachable:
            raise UnreachableError("the cache server does not answer")
        await self.replies.wait()
        return await super().count(count, known)


async def test_a_trade_missed_during_another_call_is_still_added_later(
    opened: Opened, patient: CacheConfig, clock: ManualClock
) -> None:
    """A call that adds the missing trades knows only those from before it began."""
    store = SlowStore(clock)
    config = msgspec.structs.replace(patient, retries=0)
    cache = await opened(store, MemoryLoader(), config, clock)
    ends_at = clock.now() + timedelta(hours=3)
    assert await cache.trades.count("account", "t1", 9, ends_at) == 1
    store.unreachable = {"t2", "t4"}
    assert await cache.trades.count("account", "t2", 9, ends_at) == 2  # missing in the store
    store.replies.clear()
    store.asked.clear()
    syncing = asyncio.create_task(cache.trades.count("account", "t3", 9, ends_at))
    await store.asked.wait()  # its list of known trades is complete
    assert await cache.trades.count("account", "t4", 9, ends_at) == 3
    store.replies.set()
    await syncing
    await cache.trades.count("account", "t5", 9, ends_at)
    (key,) = await store.keys(f"{patient.prefix}daily")
    store.unreachable = set()
    assert await store.count(CountRequest(key, "t5", 9, int(ends_at.timestamp() * 1000))) == 5


async def test_the_count_ends_with_the_trading_day(
    opened: Opened, memory: MemoryStore, config: CacheConfig, clock: ManualClock
) -> None:
    cache = await opened(memory, MemoryLoader(), config, clock)
    ends_at = clock.now() + timedelta(minutes=1)
    assert await cache.trades.count("account", "t1", 1, ends_at) == 1
    await clock.advance(60)
    with pytest.raises(RefusedError, match="ended at"):
        await cache.trades.count("account", "t2", 1, ends_at)
    assert await cache.trades.count("account", "t2", 1, ends_at + timedelta(days=1)) == 1


@pytest.mark.parametrize("trade_id", ["", "a b", "{x}", "x" * 1_000_000])
async def test_a_bad_trade_id_is_refused(
    opened: Opened, memory: MemoryStore, config: CacheConfig, clock: ManualClock, trade_id: str
) -> None:
    cache = await opened(memory, MemoryLoader(), config, clock)
    with pytest.raises(RefusedError):
        await cache.trades.count("account", trade_id, 1, clock.now() + timedelta(hours=1))
    assert await memory.keys(config.prefix + "daily") == []
