"""Cache: six regions, the daily trade count, and the PreCheck."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal, Self

import msgspec

from qts import telemetry
from qts.cache.call_policy import CallPolicy, WriteBehindQueue
from qts.cache.config import CacheConfig
from qts.cache.entries import (
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
    TradeIds,
)
from qts.cache.monitor import CacheMonitor, CacheStatus
from qts.cache.region import (
    CacheLoader,
    CacheTiers,
    NearCache,
    NearCacheSlot,
    SingleFlight,
    monotonic_ns,
    wall_ms,
)
from qts.cache.region_kinds import (
    OrderBookRegion,
    OrderRegion,
    PositionRegion,
    PriceRegion,
    ReadThroughRegion,
    RiskRegion,
    StrategyRegion,
)
from qts.cache.stats import CacheStats
from qts.cache.store import (
    LIMIT_REACHED,
    UNKNOWN_COUNT,
    CacheStore,
    CountRequest,
    Fields,
    check_name,
)
from qts.domain import Clock, OperationError, RefusedError, SystemClock, TradeLimitExceededError

KINDS = ("price", "position", "book", "risk", "order", "strategy")
_RESTART_DELAY_S = 1.0
_FLUSH_TIMEOUT_S = 1.0  # for pending writes at close

_MAX_DAYS = 16  # account-days of the trade count kept in memory

log = telemetry.logger("cache")


class Invalidation(msgspec.Struct, frozen=True):
    """Message that the database has a new value.

    A fill changes a position, a new parameter a strategy, a new limit the risk of an account.
    """

    kind: Literal["position", "risk", "order", "strategy"]
    name: str


class PreCheck(msgspec.Struct, frozen=True):
    """Values the pre-trade gate needs; None: no position, no such order."""

    price: CachedPrice
    position: CachedPosition | None
    risk: CachedRisk
    order: CachedOrder | None = None


_Names = tuple[str, ...]


class Cache:
    """Cache for one event loop. No call waits longer than the settings allow."""

    def __init__(
        self, store: CacheStore, loader: CacheLoader, config: CacheConfig, clock: Clock
    ) -> None:
        policy = CallPolicy(config, clock)
        self._tiers = CacheTiers(
            config=config,
            clock=clock,
            store=store,
            policy=policy,
            near=NearCache(clock),
            write_behind=WriteBehindQueue(store, policy, config, clock),
            single_flight=SingleFlight(),
            stats=CacheStats(KINDS, clock, precheck_kinds=("price", "position", "risk", "order")),
            loader=loader,
            now_ms=wall_ms(clock),
            now_ns=monotonic_ns(clock),
        )
        self._monitor = CacheMonitor(self._tiers)
        self.prices = PriceRegion(CachedPrice, self._tiers)
        self.books = OrderBookRegion(CachedOrderBook, self._tiers)
        self.positions = PositionRegion(CachedPosition, self._tiers)
        self.risks = RiskRegion(CachedRisk, self._tiers)
        self.orders = OrderRegion(CachedOrder, self._tiers)
        self.strategies = StrategyRegion(CachedStrategyParams, self._tiers)
        self.trades = TradeCounter(self._tiers)
        self._precheck_regions: tuple[
            PriceRegion | PositionRegion | RiskRegion | OrderRegion, ...
        ] = (
            self.prices,
            self.positions,
            self.risks,
            self.orders,
        )
        self._record_near_hits = self._tiers.stats.record_near_hits
        self._find_slot = self._tiers.near.find
        self._keys = functools.lru_cache(4096)(self._keys_of)
        self._invalidated_regions: dict[str, ReadThroughRegion[Any]] = {
            region.kind.kind: region
            for region in (self.positions, self.risks, self.orders, self.strategies)
        }

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        store: CacheStore,
        loader: CacheLoader,
        config: CacheConfig,
        *,
        clock: Clock | None = None,
    ) -> AsyncIterator[Self]:
        """Open the cache with its writer and monitor running; flush pending writes on exit."""
        cache = cls(store, loader, config, clock or SystemClock())
        tiers = cache._tiers
        tasks = [
            asyncio.create_task(cache._restarting("writer", tiers.write_behind.run)),
            asyncio.create_task(cache._restarting("monitor", cache._monitor.run)),
        ]
        try:
            yield cache
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await tiers.single_flight.close()
            await cache._flush_rest()

    def try_precheck(
        self, symbol: str, account: str = "account", order_id: str | None = None
    ) -> PreCheck | None:
        """Return the PreCheck if the near cache has all of it, else None; never waits."""
        return self._from_near(list(map(self._find_slot, self._keys(symbol, account, order_id))))

    async def precheck(
        self,
        symbol: str,
        account: str = "account",
        order_id: str | None = None,
        *,
        load: bool = True,
    ) -> PreCheck:
        """Return price, position, risk and order with one request to Redis.

        A missing or old price raises; other missing values are loaded from the database, or raise
        OperationError without `load`.
        """
        tiers = self._tiers
        started_ns = tiers.now_ns()
        try:
            keys = self._keys(symbol, account, order_id)
            found = list(map(self._find_slot, keys))
            if (precheck := self._from_near(found)) is not None:
                return precheck
            names = (symbol, symbol, account, order_id or "")
            return await self._from_redis(names, keys, found, load=load)
        finally:
            tiers.stats.precheck.record(tiers.now_ns() - started_ns)

    def _keys_of(self, symbol: str, account: str, order_id: str | None) -> _Names:
        """Return the keys of the price, position, risk and, if named, the order."""
        keys = (self.prices.key(symbol), self.positions.key(symbol), self.risks.key(account))
        return keys if order_id is None else (*keys, self.orders.key(order_id))

    def _from_near(self, found: list[NearCacheSlot | None]) -> PreCheck | None:
        """Build the PreCheck with one read of the clocks; inlined because it is the hot path."""
        now_ns, now_ms = self._tiers.now_ns(), self._tiers.now_ms()
        values: list[Any] = []
        due = False
        position = found[1]
        if position is None or position.expires_ns <= now_ns:
            found[1] = self.positions.no_value
        for slot in found:
            if slot is None or not slot.valid_from_ms <= now_ms <= slot.valid_until_ms:
                return None
            if slot.refresh_ns <= now_ns:  # never later than expires_ns
                if slot.expires_ns <= now_ns:
                    return None
                due = True
            values.append(slot.value)
        if values[2] is None:
            return None
        if due:
            self._refresh(found, now_ns)
        self._record_near_hits(len(values))
        return PreCheck(*values)

    def _refresh(self, found: list[NearCacheSlot | None], now_ns: int) -> None:
        for region, slot in zip(self._precheck_regions, found, strict=False):
            if slot is not None and slot.refresh_ns <= now_ns and slot.value is not None:
                region.refresh(slot.value.name, slot)

    async def _from_redis(
        self, names: _Names, keys: _Names, found: list[NearCacheSlot | None], *, load: bool
    ) -> PreCheck:
        tiers = self._tiers
        now_ns, now_ms = tiers.now_ns(), tiers.now_ms()
        values: list[Any] = [None] * len(keys)
        missed: list[int] = []
        for at, slot in enumerate(found):
            if slot is not None and slot.is_valid(now_ns, now_ms):
                values[at] = slot.value
                self._precheck_regions[at].hits.near += 1
            else:
                missed.append(at)
        replies = await self._read_redis([keys[at] for at in missed]) if missed else []
        now_ms = tiers.now_ms()
        for at, fields in zip(missed, replies, strict=True):
            values[at] = self._precheck_regions[at].accept(names[at], fields, now_ms)
        # The caller gets its result first; the near cache is updated afterwards.
        asyncio.get_running_loop().call_soon(
            self._apply_redis, missed, values.copy(), found, now_ms
        )
        if absent := [at for at in missed if values[at] is None]:
            if not load:
                raise self._missing(names, absent)
            await self._from_database(names, absent, values)
        if values[2] is None:
            raise OperationError(f"account {names[2]} has no risk limits; the PreCheck needs them")
        return PreCheck(*values)

    def _missing(self, names: _Names, absent: list[int]) -> OperationError:
        """Count the values that neither tier holds; return the error that names the first."""
        for at in absent:
            self._precheck_regions[at].hits.absent += 1
        kind = self._precheck_regions[absent[0]].kind.kind
        return OperationError(f"the cache holds no {kind} of {names[absent[0]]}")

    def _apply_redis(
        self, missed: list[int], replies: list[Any], before: list[NearCacheSlot | None], now_ms: int
    ) -> None:
        for at in missed:
            if replies[at] is not None:
                self._precheck_regions[at].on_redis_hit(replies[at], before[at], now_ms)

    async def _from_database(self, names: _Names, absent: list[int], values: list[Any]) -> None:
        regions = (self.positions, self.risks, self.orders)  # a missing price has raised
        loads = (regions[at - 1].load(names[at]) for at in absent)
        for at, value in zip(absent, await asyncio.gather(*loads), strict=True):
            values[at] = value

    async def _read_redis(self, keys: list[str]) -> list[Fields | None]:
        """Return what Redis holds under the keys; None for each if it fails or is late."""
        tiers = self._tiers
        started_ns = tiers.now_ns()
        try:
            read = functools.partial(tiers.store.read, keys)
            return await tiers.policy.call_once(read, tiers.config.precheck_ms)
        except OperationError as error:
            if due := telemetry.log_every(10, "cache precheck"):
                log.warning("precheck read failed; using the database", error=str(error), **due)
            return [None] * len(keys)
        finally:
            tiers.stats.reads.record(tiers.now_ns() - started_ns)

    async def invalidate(self, change: Invalidation) -> None:
        """Drop the old value in every tier and load the new one."""
        await self._invalidated_regions[change.kind].invalidate(change.name)

    def status(self) -> CacheStatus:
        return self._monitor.status()

    async def _restarting(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                # A bug must not stop the writer for good.
                log.exception("cache task failed; restarting", task=name)
                await self._tiers.clock.sleep(_RESTART_DELAY_S)

    async def _flush_rest(self) -> None:
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self._tiers.write_behind.flush()
        except TimeoutError:
            log.warning("cache writes lost at close", count=self._tiers.write_behind.depth)


class TradeCounter:
    """Daily trade count: each trade id counts once, and only below the limit.

    `daily_trade_count:<account>/<day>` lives until the trading day ends. Redis holds the set of
    ids, not a number, so a request repeated after a lost reply adds nothing. A set that Redis lost
    is rebuilt from the ids in the database and those counted in this process. While Redis is down
    or full, these alone decide; two processes could then both use the last place, and the database
    must prevent it.
    """

    def __init__(self, tiers: CacheTiers) -> None:
        self._tiers = tiers
        self._days: dict[str, _DayCount] = {}

    async def count(self, account: str, trade_id: str, limit: int, ends_at: datetime) -> int:
        """Return the trades of the day with this one; raise TradeLimitExceededError above `limit`.

        `ends_at` is the end of the trading day and names it.
        """
        check_name("trade", trade_id)
        if ends_at <= self._tiers.clock.now():
            raise RefusedError(f"the trading day of {account} ended at {ends_at:%Y-%m-%d %H:%M %Z}")
        name = _day_name(account, ends_at)
        key = self._tiers.config.prefix + TradeIds.key(name)
        count = CountRequest(key, trade_id, limit, int(ends_at.timestamp() * 1000))
        day = self._day(name)
        missing = frozenset(day.missing)  # others may be added until Redis replies
        try:
            total = await self._count(count, await self._known(name, day) if missing else None)
            if total == UNKNOWN_COUNT:
                total = await self._count(count, await self._known(name, day))
            day.missing -= missing
        except OperationError:  # down, or full
            total = _decide(count, await self._known(name, day))
            if total != LIMIT_REACHED:
                day.missing.add(trade_id)
        day.total = max(day.total, limit if total == LIMIT_REACHED else total)
        if total == LIMIT_REACHED:
            raise TradeLimitExceededError(
                f"account {account} has reached its daily limit of {limit} trades"
            )
        day.counted.add(trade_id)
        return total

    def total(self, account: str, ends_at: datetime) -> int:
        """Return the trades of the day by the last count in this process; never waits."""
        day = self._days.get(_day_name(account, ends_at))
        return day.total if day is not None else 0

    async def _count(self, count: CountRequest, known: Collection[str] | None) -> int:
        tiers = self._tiers
        call = functools.partial(tiers.store.count, count, known)
        return await tiers.policy.call_with_retry(call, tiers.config.write_ms)

    async def _known(self, name: str, day: _DayCount) -> frozenset[str]:
        found = await self._tiers.load_value(TradeIds.kind, name)
        if found is not None and not isinstance(found, TradeIds):
            raise OperationError(
                f"requested the trades of {name}, the loader returned {found.kind}"
            )
        return (found.ids if found else frozenset()) | day.counted

    def _day(self, name: str) -> _DayCount:
        if name not in self._days and len(self._days) >= _MAX_DAYS:
            del self._days[next(iter(self._days))]
        return self._days.setdefault(name, _DayCount())


class _DayCount:
    """Ids counted in this process, those of them that Redis may lack, and the last total."""

    def __init__(self) -> None:
        self.total = 0
        self.counted: set[str] = set()
        self.missing: set[str] = set()


@functools.lru_cache(maxsize=64)
def _day_name(account: str, ends_at: datetime) -> str:
    return check_name("trades", f"{account}/{ends_at.astimezone(UTC):%Y-%m-%dT%H}")


def _decide(count: CountRequest, known: frozenset[str]) -> int:
    if count.member in known:
        return len(known)
    return LIMIT_REACHED if len(known) >= count.limit else len(known) + 1
