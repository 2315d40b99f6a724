"""The paper broker: a venue of our own making, with its books in PostgreSQL and no way out.

    place ──▶ order written ──▶ engine ── tick ──▶ fills ──▶ written ──▶ told
                                                       ▲          │
                                            kept until ┴ the database answers

A fill happened when it is written; what a crash catches before that never was, and its order is
open again in the next life. There is no client in here: nothing can reach a real venue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Self

from qts import telemetry
from qts.brokers.broker import ExecutionReport, OrderMatches, StreamGap
from qts.brokers.config import FeesConfig, PaperConfig
from qts.brokers.paper_account import PaperAccount
from qts.brokers.paper_matching import Number, PaperMatchingEngine
from qts.brokers.paper_store import FencedOutError, PaperCancel, PaperStore
from qts.database import Database
from qts.domain import (
    Account,
    BrokerOrder,
    Clock,
    Fill,
    OperationError,
    OrderRequest,
    OrderState,
    OutcomeUnknownError,
)
from qts.venues import VenueRejectedError

_AGAIN_S = 0.5
_WRITE_S = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = telemetry.logger("brokers")


class PaperBroker:
    """For one event loop; `open` it, and hand it every tick."""

    name = "paper"

    def __init__(self, store: PaperStore, engine: PaperMatchingEngine, clock: Clock) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._known: set[str] = set()  # orders the engine has or had
        self._one_change = asyncio.Lock()
        self._unwritten: list[Fill | PaperCancel] = []
        self._wake = asyncio.Event()
        self._written = asyncio.Condition()
        self._taken_over: FencedOutError | None = None
        self._listeners: list[asyncio.Queue[ExecutionReport]] = []

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, config: PaperConfig, costs: FeesConfig, clock: Clock
    ) -> AsyncIterator[Self]:
        """Take the book over from whoever had it, with the orders that are open in it."""
        cash = Decimal(config.cash)
        store = await PaperStore.claim(database, config.account, cash, clock.now())
        engine = PaperMatchingEngine(config, costs, cash)
        engine.purse = PaperAccount(*await store.lots())
        broker = cls(store, engine, clock)
        await broker._adopt()
        writer = asyncio.create_task(broker._write(), name="paper")
        try:
            yield broker
            await broker.settled()
        except (FencedOutError, OutcomeUnknownError) as error:
            log.error("the paper book was left unwritten", reason=str(error))
        finally:
            writer.cancel()
            await asyncio.wait({writer})
            if not writer.cancelled() and (broken := writer.exception()):
                raise broken

    # -- the market

    def on_tick(self, symbol: str, last: Number, bid: Number, ask: Number, volume: Number) -> None:
        """The market of a symbol from now on; on the loop's thread. `volume` is the tick's."""
        if fills := self._engine.on_tick(symbol, last, bid, ask, volume, self._now_ns()):
            self._keep(fills)

    # -- the port

    async def place(self, request: OrderRequest) -> str:
        async with self._one_change:
            while self._unwritten:
                # What is sold must be held in the book, too: a crash forgets fills not yet written.
                await self.settled()
            now = self._clock.now()
            order = self._engine.prepare(f"P-{uuid.uuid4()}", request, self._now_ns())
            try:
                await self._store.insert(order, now)
            except BaseException:
                # Kept after all, it is taken in by whoever looks for it.
                self._engine.drop(order)
                raise
            self._known.add(order.order_id)
            self._tell([_opened(order.order_id, request, now)])
            self._keep(self._engine.start(order, self._now_ns()))
            return order.order_id

    async def cancel(self, order_id: str) -> None:
        async with self._one_change:
            await self._adopt()
            if self._engine.cancel(order_id) is None:
                raise VenueRejectedError(f"paper order {order_id} is not open", "not_open")
            self._keep([PaperCancel(order_id)])
        await self.settled()

    async def find_order(
        self,
        request: OrderRequest,
        sent_at: datetime,  # noqa: ARG002 - the identifier is enough
        known: frozenset[str],
    ) -> OrderMatches:
        async with self._one_change:
            await self._adopt()
            found = await self._store.by_identifier(request.client_order_id)
        return OrderMatches(tuple(order for order in found if order.broker_order_id not in known))

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        async with self._one_change:
            await self._adopt()
            return await self._store.orders(since)

    async def fills(self, since: datetime) -> Sequence[Fill]:
        return await self._store.fills(since)

    async def account(self) -> Account:
        return await self._store.account()

    async def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        line: asyncio.Queue[ExecutionReport] = asyncio.Queue()
        line.put_nowait(StreamGap("listening from now on"))
        self._listeners.append(line)
        try:
            while True:
                yield await line.get()
        finally:
            self._listeners.remove(line)

    # -- writing

    async def _adopt(self) -> None:
        """Orders that were written by an earlier life, or by a call that never learned of it."""
        for order, filled, fills in await self._store.open_orders():
            if order.order_id not in self._known:
                self._known.add(order.order_id)
                self._engine.restore(order, filled, fills)

    def _keep(self, changes: Sequence[Fill | PaperCancel]) -> None:
        if changes:
            self._unwritten.extend(changes)
            self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unwritten:
                batch = tuple(self._unwritten)
                try:
                    orders = await self._store.write(batch)
                except FencedOutError as error:
                    self._taken_over = error
                    break
                except OperationError as error:  # kept or not: written again, each counts once
                    log.warning("paper fills wait for the database", reason=str(error))
                    await self._clock.sleep(_AGAIN_S)
                    continue
                del self._unwritten[: len(batch)]
                self._tell([change for change in batch if isinstance(change, Fill)])
                self._tell([order for order in orders if order.state is not OrderState.OPEN])
            async with self._written:
                self._written.notify_all()

    async def settled(self) -> None:
        """Until everything that has happened is written; OutcomeUnknown when it takes too long."""
        try:
            async with asyncio.timeout(_WRITE_S), self._written:
                await self._written.wait_for(lambda: self._taken_over or not self._unwritten)
        except TimeoutError:
            raise OutcomeUnknownError(
                f"the paper book's database did not answer in {_WRITE_S:g} s"
            ) from None
        if self._taken_over is not None:
            raise self._taken_over

    def _tell(self, notices: Sequence[ExecutionReport]) -> None:
        for line in self._listeners:
            for notice in notices:
                line.put_nowait(notice)

    def _now_ns(self) -> int:
        passed = self._clock.now() - _EPOCH
        return (passed.days * 86_400 + passed.seconds) * 10**9 + passed.microseconds * 1000


def _opened(order_id: str, request: OrderRequest, at: datetime) -> BrokerOrder:
    return BrokerOrder(
        broker_order_id=order_id,
        identifier=request.client_order_id,
        symbol=request.symbol,
        side=request.side,
        type=request.type,
        quantity=request.quantity,
        price=request.price,
        filled=Decimal(0),
        state=OrderState.OPEN,
        placed_at=at,
    )
