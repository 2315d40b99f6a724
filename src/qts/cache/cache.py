"""The cache as the other rooms see it: six kinds, the trade count, and the PreCheck."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import msgspec

from qts import telemetry
from qts.cache.backed import Backed, Orders, Positions, Risks, Strategies
from qts.cache.behind import Behind
from qts.cache.book import Book
from qts.cache.config import CacheConfig
from qts.cache.figures import Figures
from qts.cache.flights import Flights
from qts.cache.guard import Guard
from qts.cache.keeper import Keeper
from qts.cache.kept import Kept, Levels, Truth
from qts.cache.near import Near, Slot
from qts.cache.order import OrderStatus
from qts.cache.position import Position
from qts.cache.price import Price
from qts.cache.pushed import Books, Prices
from qts.cache.risk import Risk
from qts.cache.status import CacheStatus
from qts.cache.store import Fields, Store
from qts.cache.strategy import StrategyParams
from qts.cache.trades import Trades
from qts.domain import Clock, Failed, SystemClock

KINDS = ("price", "position", "book", "risk", "order", "strategy")
_CLOSE_S = 1.0  # for the writes that still wait

log = telemetry.logger("cache")


class Change(msgspec.Struct, frozen=True):
    """News from the bus: the database has another value than before.

    A fill changes a position, a new parameter a strategy, a new limit the risk of an account.
    """

    kind: Literal["position", "risk", "order", "strategy"]
    name: str


class PreCheck(msgspec.Struct, frozen=True):
    """All that the gate looks at before an order; None: no position, no such order."""

    price: Price
    position: Position | None
    risk: Risk
    order: OrderStatus | None = None


_Looked = tuple[Kept[Any], str, Slot | None]


class Cache:
    """For one event loop. Nothing here waits longer than the settings allow, Redis or not."""

    def __init__(self, store: Store, truth: Truth, config: CacheConfig, clock: Clock) -> None:
        guard = Guard(config, clock)
        self._levels = Levels(
            config=config,
            clock=clock,
            store=store,
            guard=guard,
            near=Near(clock),
            behind=Behind(store, guard, config, clock),
            flights=Flights(),
            figures=Figures(KINDS, clock),
            truth=truth,
        )
        self._keeper = Keeper(self._levels)
        self.prices = Prices(Price, self._levels)
        self.books = Books(Book, self._levels)
        self.positions = Positions(Position, self._levels)
        self.risks = Risks(Risk, self._levels)
        self.orders = Orders(OrderStatus, self._levels)
        self.strategies = Strategies(StrategyParams, self._levels)
        self.trades = Trades(self._levels)
        self._changing: dict[str, Backed[Any]] = {
            each.kind.kind: each
            for each in (self.positions, self.risks, self.orders, self.strategies)
        }

    @classmethod
    @asynccontextmanager
    async def open(
        cls, store: Store, truth: Truth, config: CacheConfig, *, clock: Clock | None = None
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
        return self._from_here(self._look(symbol, account, order_id))

    async def precheck(
        self, symbol: str, account: str = "account", order_id: str | None = None
    ) -> PreCheck:
        """Price, position, risk and order at once: one question to Redis, asked once.

        A price that is missing or old is an error; what else is missing the database tells.
        """
        began_ns = self._levels.clock.monotonic_ns()
        try:
            looked = self._look(symbol, account, order_id)
            return self._from_here(looked) or await self._from_below(looked)
        finally:
            self._levels.figures.precheck.record(self._levels.clock.monotonic_ns() - began_ns)

    def _look(self, symbol: str, account: str, order_id: str | None) -> list[_Looked]:
        """Price, position, risk and, where one is named, the order."""
        wanted: list[tuple[Kept[Any], str]] = [
            (self.prices, symbol),
            (self.positions, symbol),
            (self.risks, account),
        ]
        if order_id is not None:
            wanted.append((self.orders, order_id))
        return [(kept, name, kept.look(name)) for kept, name in wanted]

    def _from_here(self, looked: list[_Looked]) -> PreCheck | None:
        values: list[Any] = []
        for _, _, slot in looked:
            if slot is None:
                return None
            values.append(slot.value)
        if values[2] is None:
            return None
        for kept, _, _ in looked:
            kept.tally.near += 1
        return PreCheck(*values)

    async def _from_below(self, looked: list[_Looked]) -> PreCheck:
        asked = [kept.key(name) for kept, name, slot in looked if slot is None]
        told = await self._ask_redis(asked) if asked else {}
        values: list[Any] = []
        missing: list[tuple[int, Backed[Any], str]] = []
        for at, (kept, name, slot) in enumerate(looked):
            if slot is not None:
                kept.tally.near += 1
                values.append(slot.value)
                continue
            fields, before = told[kept.key(name)]
            if isinstance(kept, Backed):
                values.append(kept.accepted(name, fields, before))
                if values[at] is None:
                    missing.append((at, kept, name))
            else:
                values.append(self.prices.checked(name, self.prices.decoded(name, fields)))
        if missing:
            loaded = await asyncio.gather(*(kept.load(name) for _, kept, name in missing))
            for (at, _, _), value in zip(missing, loaded, strict=True):
                values[at] = value
        if values[2] is None:
            raise Failed(f"no limits of account {looked[2][1]} are known: nothing can be checked")
        return PreCheck(*values)

    async def _ask_redis(self, keys: list[str]) -> dict[str, tuple[Fields | None, Slot | None]]:
        """What Redis holds under these keys, and what stood here before it was asked."""
        levels = self._levels
        before = [levels.near.at(key) for key in keys]
        fields: list[Fields | None] = [None] * len(keys)
        began_ns = levels.clock.monotonic_ns()
        try:
            read = functools.partial(levels.store.read, keys)
            fields = await levels.guard.once(read, levels.config.precheck_ms)
        except Failed as error:
            if due := telemetry.every(10, "cache precheck"):
                log.warning("a PreCheck went without Redis", error=str(error), **due)
        finally:
            levels.figures.reads.record(levels.clock.monotonic_ns() - began_ns)
        return dict(zip(keys, zip(fields, before, strict=True), strict=True))

    async def changed(self, change: Change) -> None:
        """Forget the old value everywhere and load the new one."""
        await self._changing[change.kind].changed(change.name)

    async def follow(self, changes: AsyncIterator[Change]) -> None:
        """Until the news end. No change waits for the one before it to reach Redis."""
        async for change in changes:
            self._changing[change.kind].forget(change.name)
            self._levels.flights.start(self.changed(change))

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
