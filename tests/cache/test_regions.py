"""Three tiers: near cache, Redis, database, on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.cache import Cache, CacheConfig, CachedPrice, Invalidation
from qts.cache.store import MemoryStore
from qts.domain import (
    CacheStaleDataError,
    ManualClock,
    OperationError,
    PriceDataUnavailableError,
    UnreachableError,
)
from tests.cache import samples
from tests.cache.loader import MemoryLoader

Opened = Callable[..., Awaitable[Cache]]


@pytest.fixture
def loader() -> MemoryLoader:
    return MemoryLoader(samples.position(), samples.risk(), samples.order(), samples.strategy())


@pytest.fixture
async def cache(
    opened: Opened,
    memory: MemoryStore,
    loader: MemoryLoader,
    config: CacheConfig,
    clock: ManualClock,
) -> Cache:
    return await opened(memory, loader, config, clock)


@pytest.fixture
async def other(
    opened: Opened, memory: MemoryStore, config: CacheConfig, clock: ManualClock
) -> Cache:
    """Another process: the same Redis, an empty database."""
    return await opened(memory, MemoryLoader(), config, clock)


def at(clock: ManualClock) -> int:
    return int(clock.now().timestamp() * 1000)


def tick(clock: ManualClock, last: int = 75050, ver: int = 0) -> CachedPrice:
    return samples.price(last=last, at=at(clock), ver=ver)


async def test_a_pushed_price_is_here_at_once_and_in_redis_soon(
    cache: Cache, other: Cache, clock: ManualClock
) -> None:
    assert cache.prices.push(tick(clock))
    found = await cache.prices.get("005930")
    assert found.last == 75050
    assert found.received_at == at(clock)
    with pytest.raises(PriceDataUnavailableError):
        await other.prices.get("005930")
    await clock.advance(0.006)  # no second tick: the batch is sent anyway
    assert await other.prices.get("005930") == found


async def test_only_the_newest_of_many_ticks_is_written(
    cache: Cache, other: Cache, clock: ManualClock
) -> None:
    for last in range(75000, 75100):
        cache.prices.push(tick(clock, last))
    await clock.advance(0.006)
    assert (await other.prices.get("005930")).last == 75099
    assert cache.status().queue.written == 1


async def test_a_price_older_than_its_ttl_is_refused(cache: Cache, clock: ManualClock) -> None:
    cache.prices.push(tick(clock))
    await clock.advance(0.1)
    with pytest.raises(CacheStaleDataError, match="the price of 005930 is 100 ms old"):
        await cache.prices.get("005930")
    with pytest.raises(PriceDataUnavailableError, match="no price of 000660"):
        await cache.prices.get("000660")
    assert cache.prices.peek("005930") is None


async def test_a_stale_feed_that_repeats_prices_is_refused(
    cache: Cache, clock: ManualClock
) -> None:
    """Received now, with a venue time of five seconds ago."""
    old = tick(clock)
    await clock.advance(5)
    cache.prices.push(old)
    with pytest.raises(CacheStaleDataError, match="venue time is 5000 ms ago"):
        await cache.prices.get("005930")


@pytest.mark.parametrize("jump_s", [-3600, -5, -0.2, 0.2, 5, 3600])
async def test_a_clock_that_jumps_makes_data_old_and_never_new(
    cache: Cache, other: Cache, clock: ManualClock, jump_s: float
) -> None:
    cache.prices.push(tick(clock))
    cache.books.push(samples.book(at=at(clock)))
    await clock.advance(0.006)
    assert await other.prices.get("005930")
    clock.set_wall(clock.now() + timedelta(seconds=jump_s))
    for each in (cache, other):
        with pytest.raises(CacheStaleDataError):
            await each.prices.get("005930")
        with pytest.raises(CacheStaleDataError):
            await each.books.get("005930")
    cache.prices.push(tick(clock, 80000))
    assert (await cache.prices.get("005930")).last == 80000


async def test_a_jump_of_the_clock_reloads_from_the_database(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    await cache.positions.get("005930")
    clock.set_wall(clock.now() - timedelta(hours=1))
    assert await cache.positions.get("005930")
    assert loader.loads["position", "005930"] == 2


async def test_a_book_is_whole_and_best_first(
    cache: Cache, other: Cache, clock: ManualClock
) -> None:
    cache.books.push(samples.book(at=at(clock)))
    await clock.advance(0.006)
    found = await other.books.get("005930")
    assert [int(level.price) for level in found.bids] == [75000, 74900, 74800]
    assert [int(level.price) for level in found.asks] == [75100, 75200, 75300]
    await clock.advance(0.05)
    with pytest.raises(PriceDataUnavailableError):
        await other.books.get("005930")
    with pytest.raises(CacheStaleDataError):
        await cache.books.get("005930")


async def test_a_miss_is_loaded_once_and_shared(
    cache: Cache, other: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    loader.open.clear()
    asking = [asyncio.create_task(cache.positions.get("005930")) for _ in range(100)]
    await clock.advance(0)
    loader.open.set()
    found = await asyncio.gather(*asking)
    assert {value and value.qty for value in found} == {100}
    assert loader.loads["position", "005930"] == 1
    await clock.advance(0.006)
    assert await other.positions.get("005930") == found[0]  # through Redis


async def test_a_cancelled_caller_does_not_stop_the_load(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    loader.open.clear()
    first, second = (asyncio.create_task(cache.positions.get("005930")) for _ in range(2))
    await clock.advance(0)
    first.cancel()
    await clock.advance(0)
    loader.open.set()
    assert await second is not None
    assert loader.loads["position", "005930"] == 1


async def test_absence_in_the_database_is_cached_for_a_second(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    assert await cache.positions.get("000660") is None
    assert await cache.positions.get("000660") is None
    assert loader.loads["position", "000660"] == 1
    await clock.advance(1.0)
    loader.store(samples.position("000660", 7))
    found = await cache.positions.get("000660")
    assert found is not None
    assert found.qty == 7


@pytest.mark.parametrize(
    ("kind", "name", "ttl_s"), [("risk", "account", 5), ("order", "ORD123456", 60)]
)
async def test_long_lived_values_are_refreshed_before_expiry(
    cache: Cache, loader: MemoryLoader, clock: ManualClock, kind: str, name: str, ttl_s: int
) -> None:
    region = cache.risks if kind == "risk" else cache.orders
    assert await region.get(name)
    await clock.advance(ttl_s * 0.79)
    assert region.peek(name)
    await clock.advance(0)
    assert loader.loads[kind, name] == 1
    await clock.advance(ttl_s * 0.02)
    assert region.peek(name)  # served from the near cache, reloaded in the background
    await clock.advance(0)
    assert loader.loads[kind, name] == 2
    await clock.advance(ttl_s * 0.75)
    assert region.peek(name)


async def test_a_position_is_not_refreshed_ahead(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    assert await cache.positions.get("005930")
    await clock.advance(0.95)
    assert cache.positions.peek("005930")
    await clock.advance(0)
    assert loader.loads["position", "005930"] == 1


async def test_a_change_is_seen_by_the_next_reader(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    assert await cache.positions.get("005930")
    loader.store(samples.position(qty=150, ver=2))
    await cache.invalidate(Invalidation("position", "005930"))
    found = await cache.positions.get("005930")
    assert found is not None
    assert found.qty == 150


async def test_a_load_from_before_a_change_is_not_kept_after_it(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    loader.open.clear()
    early = asyncio.create_task(cache.positions.get("005930"))
    await clock.advance(0)  # it has read the old row and waits for its reply
    loader.store(samples.position(qty=150, ver=2))
    changing = asyncio.create_task(cache.invalidate(Invalidation("position", "005930")))
    await clock.advance(0)
    loader.open.set()
    await asyncio.gather(early, changing)
    found = await cache.positions.get("005930")
    assert found is not None
    assert found.qty == 150


async def test_a_load_from_before_a_change_is_kept_in_no_tier(
    cache: Cache, memory: MemoryStore, loader: MemoryLoader, clock: ManualClock
) -> None:
    """Invalidated, new value not loaded: the old one must not be used."""
    loader.open.clear()
    early = asyncio.create_task(cache.positions.get("005930"))
    await clock.advance(0)
    cache.positions._drop_local("005930")
    loader.open.set()
    await early
    await clock.advance(0.006)
    assert cache.positions.peek("005930") is None
    assert await memory.keys(cache.positions.key("005930")) == []


async def test_a_change_of_every_kind_is_followed(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    await cache.positions.get("005930")
    await cache.risks.get("account")
    await cache.orders.get("ORD123456")
    await cache.strategies.get("SCALP_RSI")
    changes = [
        Invalidation("position", "005930"),
        Invalidation("risk", "account"),
        Invalidation("order", "ORD123456"),
        Invalidation("strategy", "SCALP_RSI"),
    ]
    for change in changes:
        await cache.invalidate(change)
    assert all(loader.loads[change.kind, change.name] == 2 for change in changes)


async def test_an_older_version_never_replaces_a_newer_one(
    cache: Cache, other: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    assert await cache.positions.put(samples.position(qty=150, ver=5))
    assert not await cache.positions.put(samples.position(qty=100, ver=4))
    found = await other.positions.get("005930")
    assert found is not None
    assert found.qty == 150


async def test_an_old_value_in_redis_does_not_come_back_here(
    cache: Cache, other: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    """Redis holds a version older than the near cache's."""
    await other.positions.put(samples.position(qty=100, ver=1))
    assert await cache.positions.get("005930")
    loader.store(samples.position(qty=150, ver=2))
    await cache.invalidate(Invalidation("position", "005930"))
    await cache._tiers.store.delete(await cache._tiers.store.keys(""))
    await other.positions.put(samples.position(qty=100, ver=1))
    cache.positions._drop_local("005930")
    found = await cache.positions.get("005930")
    assert found is not None
    assert found.qty == 150


async def test_write_through_is_in_redis_when_it_returns(
    cache: Cache, other: Cache, clock: ManualClock
) -> None:
    await cache.orders.put(samples.order(filled=80, ver=9))
    found = await other.orders.get("ORD123456")
    assert found is not None
    assert found.filled_qty == 80


async def test_precheck_is_the_same_from_every_tier(cache: Cache, clock: ManualClock) -> None:
    cache.prices.push(tick(clock))
    assert cache.try_precheck("005930", order_id="ORD123456") is None
    below = await cache.precheck("005930", order_id="ORD123456")
    here = cache.try_precheck("005930", order_id="ORD123456")
    assert here == below
    assert here is not None
    assert here.price.last == 75050
    assert here.risk.trade_count == 15
    assert here.position is not None
    assert here.order is not None
    assert here.order.status == "PARTIALLY_FILLED"


async def test_precheck_without_a_fresh_price_is_refused(cache: Cache, clock: ManualClock) -> None:
    with pytest.raises(PriceDataUnavailableError):
        await cache.precheck("005930")
    cache.prices.push(tick(clock))
    assert await cache.precheck("005930")
    await clock.advance(0.1)
    with pytest.raises(CacheStaleDataError):
        await cache.precheck("005930")


async def test_precheck_without_limits_is_refused(cache: Cache, clock: ManualClock) -> None:
    cache.prices.push(tick(clock))
    with pytest.raises(OperationError, match="account nobody has no risk limits"):
        await cache.precheck("005930", "nobody")


async def test_no_position_and_no_order_are_valid_results(cache: Cache, clock: ManualClock) -> None:
    cache.prices.push(samples.price("000660", at=at(clock)))
    found = await cache.precheck("000660", order_id="NEW")
    assert (found.position, found.order) == (None, None)
    assert cache.try_precheck("000660", order_id="NEW") == found


async def test_a_load_from_a_hanging_database_times_out(
    opened: Opened, memory: MemoryStore, loader: MemoryLoader, config: CacheConfig
) -> None:
    cache = await opened(memory, loader, config)
    loader.open.clear()
    with pytest.raises(
        UnreachableError, match="no position of 005930 from the database within 250 ms"
    ):
        await cache.positions.get("005930")
    loader.open.set()
    assert await cache.positions.get("005930")


async def test_a_value_that_cannot_be_read_is_loaded_from_the_database(
    cache: Cache, memory: MemoryStore, loader: MemoryLoader, clock: ManualClock
) -> None:
    await cache.positions.put(samples.position(qty=1, ver=1))
    key = cache.positions.key("005930")
    for spoilt in ({"qty": "NaN"}, {"qty": "many"}, {"symbol": "000660"}, {"updated_at": ""}):
        until_ns, fields = memory._values[key]
        assert isinstance(fields, dict)
        memory._values[key] = (until_ns, {**fields, **spoilt})
        cache._tiers.near.drop(key, 1)
        found = await cache.positions.get("005930")
        assert found is not None
        assert found.qty == 100
        await clock.advance(0.006)


async def test_expired_slots_are_swept(cache: Cache, clock: ManualClock) -> None:
    for n in range(1000):
        cache.prices.push(samples.price(f"S{n}", at=at(clock)))
    await clock.advance(0.5)
    cache._tiers.near.sweep()
    assert len(cache._tiers.near) == 0


async def test_a_change_between_a_reply_and_its_storing_wins(
    cache: Cache, other: Cache, clock: ManualClock
) -> None:
    """A PreCheck returns first and stores the values of Redis one loop iteration later."""
    cache.prices.push(tick(clock))
    for name, region in (("005930", cache.positions), ("account", cache.risks)):
        await region.get(name)
    await clock.advance(0.006)
    assert (await other.precheck("005930")).position is not None
    other.positions._drop_local("005930")
    await clock.advance(0.001)
    assert other.positions.peek("005930") is None
    assert other.risks.peek("account") is not None


class NoDeleteStore(MemoryStore):
    """Store that refuses deletes."""

    async def delete(self, keys: Sequence[str]) -> int:
        raise UnreachableError(f"{keys} are not deleted")


@pytest.mark.parametrize("seen_before", [True, False])
async def test_a_value_that_could_not_be_deleted_is_not_used(
    opened: Opened, config: CacheConfig, clock: ManualClock, seen_before: bool
) -> None:
    """Read while the new value is being loaded."""
    store, loader = (
        NoDeleteStore(clock),
        MemoryLoader(samples.position(qty=1, ver=1), samples.risk()),
    )
    feed = await opened(store, loader, config, clock)
    cache = await opened(store, loader, config, clock)
    await feed.positions.get("005930")
    await clock.advance(0.006)
    if seen_before:
        await cache.positions.get("005930")
    cache.prices.push(tick(clock))
    loader.store(samples.position(qty=2, ver=2))
    loader.open.clear()
    changing = asyncio.create_task(cache.invalidate(Invalidation("position", "005930")))
    while not loader.loads["position", "005930"] > 1:
        await clock.advance(0.01)
    checking = asyncio.create_task(cache.precheck("005930"))
    asking = asyncio.create_task(cache.positions.get("005930"))
    await clock.advance(0)
    loader.open.set()
    await changing
    for position in ((await checking).position, await asking):
        assert position is not None
        assert position.qty == 2
    again = await cache.positions.get("005930")
    assert again is not None
    assert again.qty == 2


async def test_a_change_that_cannot_be_loaded_is_refused(
    opened: Opened, config: CacheConfig, clock: ManualClock
) -> None:
    store, loader = NoDeleteStore(clock), MemoryLoader(samples.position())
    cache = await opened(store, loader, config, clock)
    await cache.positions.get("005930")
    await clock.advance(0.006)
    loader.is_down = True
    changing = asyncio.create_task(cache.invalidate(Invalidation("position", "005930")))
    while not changing.done():
        await clock.advance(0.01)
    with pytest.raises(UnreachableError):
        await cache.positions.get("005930")


moves = st.tuples(st.integers(0, 150), st.integers(-5000, 5000) | st.just(0))


@given(st.lists(moves, max_size=8))
async def test_nothing_is_served_beyond_its_ttl_by_either_clock(
    steps: list[tuple[int, int]],
) -> None:
    """Whatever the two clocks do: time passes, and the wall clock jumps, there and back again."""
    clock = ManualClock()
    cache = Cache(MemoryStore(clock), MemoryLoader(), CacheConfig(), clock)
    pushed = tick(clock)
    born_ns, born_ms = clock.monotonic_ns(), at(clock)
    cache.prices.push(pushed)
    for passes_ms, jump_ms in steps:
        await clock.advance(passes_ms / 1000)
        clock.set_wall(clock.now() + timedelta(milliseconds=jump_ms))
        age_ms = (clock.monotonic_ns() - born_ns) / 1e6
        wall_ms = at(clock) - born_ms
        usable = age_ms < 100 and -50 <= wall_ms <= 100
        assert (cache.prices.peek("005930") is not None) == usable


async def test_all_positions_at_once_say_that_there_is_no_other(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    cache.prices.push(samples.price("000660", at=at(clock)))
    cache.risks.push(samples.risk())
    cache.positions.push_all([samples.position(ver=1)])
    assert await cache.positions.get("000660") is None
    assert (await cache.precheck("000660", load=False)).position is None
    cache.positions.push_all([samples.position("000660", ver=2)])  # the first one was closed
    assert (await cache.precheck("000660", load=False)).position is not None
    assert await cache.positions.get("005930") is None
    assert not loader.loads
    assert cache.status().kinds["position"].hit_rate == 1.0


async def test_what_is_known_of_all_positions_ends_with_an_invalidation_and_with_the_ttl(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    cache.positions.push_all([])
    cache.positions._drop_local("005930")
    assert await cache.positions.get("005930") is not None  # from the database
    cache.positions.push_all([])
    await clock.advance(1.1)
    assert await cache.positions.get("005930") is not None
    assert loader.loads["position", "005930"] == 2


async def test_a_precheck_that_may_not_load_names_what_is_missing(
    cache: Cache, loader: MemoryLoader, clock: ManualClock
) -> None:
    cache.prices.push(tick(clock))
    with pytest.raises(OperationError, match="the cache holds no position of 005930"):
        await cache.precheck("005930", load=False)
    assert not loader.loads
    seen = cache.status().kinds
    assert (seen["position"].absent, seen["risk"].absent) == (1, 1)
