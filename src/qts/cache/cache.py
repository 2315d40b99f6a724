"""The cache as the other rooms see it: six kinds, the trade count, and the PreCheck."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import msgspec

from qts import telemetry
from qts.cache.call_policy import CallPolicy
from qts.cache.config import CacheConfig
from qts.cache.entries import (
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
)
from qts.cache.monitor import CacheMonitor
from qts.cache.near_cache import NearCache, NearCacheSlot
from qts.cache.push_region import OrderBookRegion, PriceRegion
from qts.cache.read_through import (
    OrderRegion,
    PositionRegion,
    ReadThroughRegion,
    RiskRegion,
    StrategyRegion,
)
from qts.cache.region import CacheLoader, CacheTiers, monotonic_ns, wall_ms
from qts.cache.single_flight import SingleFlight
from qts.cache.stats import CacheStats
from qts.cache.status import CacheStatus
from qts.cache.store import CacheStore, Fields
from qts.cache.trade_counter import TradeCounter
from qts.cache.write_behind import WriteBehindQueue
from qts.domain import Clock, OperationError, SystemClock

KINDS = ("price", "position", "book", "risk", "order", "strategy")
_CLOSE_S = 1.0  # for the writes that still wait

log = telemetry.logger("cache")


class Invalidation(msgspec.Struct, frozen=True):
    """News from the bus: the database has another value than before.

    A fill changes a position, a new parameter a strategy, a new limit the risk of an account.
    """

    kind: Literal["position", "risk", "order", "strategy"]
    name: str


class PreCheck(msgspec.Struct, frozen=True):
    """All that the gate looks at before an order; None: no position, no such order."""

    price: CachedPrice
    position: CachedPosition | None
    risk: CachedRisk
    order: CachedOrder | None = None


_Names = tuple[str, ...]


class Cache:
    """For one event loop. Nothing here waits longer than the settings allow, Redis or not."""

    def __init__(
        self, store: CacheStore, truth: CacheLoader, config: CacheConfig, clock: Clock
    ) -> None:
        guard = CallPolicy(config, clock)
        self._levels = CacheTiers(
            config=config,
            clock=clock,
            store=store,
            guard=guard,
            near=NearCache(clock),
            behind=WriteBehindQueue(store, guard, config, clock),
            flights=SingleFlight(),
            figures=CacheStats(KINDS, clock, together=("price", "position", "risk", "order")),
            truth=truth,
            now_ms=wall_ms(clock),
            now_ns=monotonic_ns(clock),
        )
        self._keeper = CacheMonitor(self._levels)
        self.prices = PriceRegion(CachedPrice, self._levels)
        self.books = OrderBookRegion(CachedOrderBook, self._levels)
        self.positions = PositionRegion(CachedPosition, self._levels)
        self.risks = RiskRegion(CachedRisk, self._levels)
        self.orders = OrderRegion(CachedOrder, self._levels)
        self.strategies = StrategyRegion(CachedStrategyParams, self._levels)
        self.trades = TradeCounter(self._levels)
        self._asked: tuple[PriceRegion | PositionRegion | RiskRegion | OrderRegion, ...] = (
            self.prices,
            self.positions,
            self.risks,
            self.orders,
        )
        self._served_here = self._levels.figures.served_here
        self._at = self._levels.near.at
        self._keys = functools.lru_cache(4096)(self._keys_of)
        self._changing: dict[str, ReadThroughRegion[Any]] = {
            each.kind.kind: each
            for each in (self.positions, self.risks, self.orders, self.strategies)
        }

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        store: CacheStore,
        truth: CacheLoader,
        config: CacheConfig,
        *,
        clock: Clock | None = None,
    ) -> AsyncIterator[Self]:
        """With its writer and its keeper at work; what waits is written on the way out."""
        cache = cls(store, truth, config, clock or SystemClock())
        levels = cache._levels
        tasks = [
            asyncio.create_task(cache._forever("writer", levels.behind.run)),
            asyncio.create_task(cache._forever("keeper", cache._keeper.run)),
        ]
        try:
            yield cache
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await levels.flights.close()
            await cache._write_rest()

    def try_precheck(
        self, symbol: str, account: str = "account", order_id: str | None = None
    ) -> PreCheck | None:
        """The answer if this process has all of it; microseconds, never waits."""
        return self._from_here(list(map(self._at, self._keys(symbol, account, order_id))))

    async def precheck(
        self, symbol: str, account: str = "account", order_id: str | None = None
    ) -> PreCheck:
        """Price, position, risk and order at once: one question to Redis, asked once.

        A price that is missing or old is an error; what else is missing the database tells.
        """
        levels = self._levels
        began_ns = levels.now_ns()
        try:
            keys = self._keys(symbol, account, order_id)
            found = list(map(self._at, keys))
            if (here := self._from_here(found)) is not None:
                return here
            return await self._from_below((symbol, symbol, account, order_id or ""), keys, found)
        finally:
            levels.figures.precheck.record(levels.now_ns() - began_ns)

    def _keys_of(self, symbol: str, account: str, order_id: str | None) -> _Names:
        """Of the price, the position, the limits and, where one is named, the order."""
        keys = (self.prices.key(symbol), self.positions.key(symbol), self.risks.key(account))
        return keys if order_id is None else (*keys, self.orders.key(order_id))

    def _from_here(self, found: list[NearCacheSlot | None]) -> PreCheck | None:
        """By one look at the clocks. Written out: most of its time is memory that is cold."""
        now_ns, now_ms = self._levels.now_ns(), self._levels.now_ms()
        values: list[Any] = []
        due = False
        for slot in found:
            if slot is None or not slot.from_ms <= now_ms <= slot.until_ms:
                return None
            if slot.renew_ns <= now_ns:  # which is not after its end
                if slot.ends_ns <= now_ns:
                    return None
                due = True
            values.append(slot.value)
        if values[2] is None:
            return None
        if due:
            self._renew(found, now_ns)
        self._served_here(len(values))
        return PreCheck(*values)

    def _renew(self, found: list[NearCacheSlot | None], now_ns: int) -> None:
        for kept, slot in zip(self._asked, found, strict=False):
            if slot is not None and slot.renew_ns <= now_ns and slot.value is not None:
                kept.renew(slot.value.name, slot)

    async def _from_below(
        self, names: _Names, keys: _Names, found: list[NearCacheSlot | None]
    ) -> PreCheck:
        levels = self._levels
        now_ns, now_ms = levels.now_ns(), levels.now_ms()
        values: list[Any] = [None] * len(keys)
        missed: list[int] = []
        for at, slot in enumerate(found):
            if slot is not None and slot.serves(now_ns, now_ms):
                values[at] = slot.value
                self._asked[at].tally.near += 1
            else:
                missed.append(at)
        told = await self._ask_redis([keys[at] for at in missed]) if missed else []
        now_ms = levels.now_ms()
        for at, fields in zip(missed, told, strict=True):
            values[at] = self._asked[at].accepted(names[at], fields, now_ms)
        # The caller has its answer first; this is done while the next one is waited for.
        asyncio.get_running_loop().call_soon(self._keep, missed, values.copy(), found, now_ms)
        if None in values:
            await self._from_database(names, [at for at in missed if values[at] is None], values)
            if values[2] is None:
                raise OperationError(
                    f"no limits of account {names[2]} are known: nothing can be checked"
                )
        return PreCheck(*values)

    def _keep(
        self, missed: list[int], told: list[Any], before: list[NearCacheSlot | None], now_ms: int
    ) -> None:
        for at in missed:
            if told[at] is not None:
                self._asked[at].keep_told(told[at], before[at], now_ms)

    async def _from_database(self, names: _Names, absent: list[int], values: list[Any]) -> None:
        backed = (self.positions, self.risks, self.orders)  # a price is there, or was refused
        loads = (backed[at - 1].load(names[at]) for at in absent)
        for at, value in zip(absent, await asyncio.gather(*loads), strict=True):
            values[at] = value

    async def _ask_redis(self, keys: list[str]) -> list[Fields | None]:
        """What Redis holds under these keys; nothing, when it does not answer in time."""
        levels = self._levels
        began_ns = levels.now_ns()
        try:
            read = functools.partial(levels.store.read, keys)
            return await levels.guard.call_once(read, levels.config.precheck_ms)
        except OperationError as error:
            if due := telemetry.log_every(10, "cache precheck"):
                log.warning("a PreCheck went without Redis", error=str(error), **due)
            return [None] * len(keys)
        finally:
            levels.figures.reads.record(levels.now_ns() - began_ns)

    async def invalidate(self, change: Invalidation) -> None:
        """Forget the old value everywhere and load the new one."""
        await self._changing[change.kind].changed(change.name)

    async def follow_invalidations(self, changes: AsyncIterator[Invalidation]) -> None:
        """Until the news end. No change waits for the one before it to reach Redis."""
        async for change in changes:
            self._changing[change.kind].forget(change.name)
            self._levels.flights.start(self.invalidate(change))

    def status(self) -> CacheStatus:
        return self._keeper.status()

    async def _forever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                # A bug must not silence the writer for good.
                log.exception("a part of the cache failed and goes on", part=name)
                await self._levels.clock.sleep(1.0)

    async def _write_rest(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._levels.behind.flush()
        except TimeoutError:
            log.warning("writes were left over", depth=self._levels.behind.depth)
