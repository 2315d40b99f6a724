"""Paper broker: an in-process venue with its accounts in PostgreSQL and no network client.

    place ──▶ order written ──▶ engine ── tick ──▶ fills ──▶ written ──▶ reported
                                                     │          ▲
                                                     └─ retried ┘ while the database is down

A fill counts once it is written. A crash before that discards it, and its order is open again
after the restart. The module holds no venue client, so nothing can reach a real venue.
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
from qts.brokers.config import FeesConfig, PaperConfig, paper_account
from qts.brokers.paper_account import PaperAccount
from qts.brokers.paper_matching import PaperMatchingEngine
from qts.brokers.paper_store import FencedOutError, PaperCancel, PaperStore
from qts.database import Database
from qts.domain import (
    Account,
    AccountKey,
    BrokerOrder,
    Clock,
    Fill,
    Instruments,
    OperationError,
    OrderBook,
    OrderRequest,
    OrderState,
    OutcomeUnknownError,
    Tick,
)
from qts.venues import VenueRejectedError

_RETRY_INTERVAL_S = 0.5
_WRITE_TIMEOUT_S = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = telemetry.logger("brokers")


class PaperBroker:
    """Broker for one event loop. Use `open`, and pass every tick to `on_tick`."""

    name = "paper"

    def __init__(
        self, store: PaperStore, engine: PaperMatchingEngine, key: AccountKey, clock: Clock
    ) -> None:
        self.key = key
        self._store = store
        self._engine = engine
        self._clock = clock
        self._known: set[str] = set()  # broker order ids the engine has or had
        self._change_lock = asyncio.Lock()
        self._unwritten: list[Fill | PaperCancel] = []
        self._wake = asyncio.Event()
        self._written = asyncio.Condition()
        self._fenced_out: FencedOutError | None = None
        self._queues: list[asyncio.Queue[ExecutionReport]] = []

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database: Database,
        config: PaperConfig,
        costs: FeesConfig,
        instruments: Instruments,
        clock: Clock,
    ) -> AsyncIterator[Self]:
        """Open the account, fencing out its earlier opener, and restore its open orders."""
        cash = Decimal(config.cash)
        store = await PaperStore.claim(database, config.account, cash, clock.now())
        engine = PaperMatchingEngine(config, costs, cash, instruments)
        engine.account = PaperAccount(*await store.lots())
        broker = cls(store, engine, paper_account(config), clock)
        await broker._restore_orders()
        writer = asyncio.create_task(broker._write(), name="paper writer")
        try:
            yield broker
            await broker.wait_written()
        except (FencedOutError, OutcomeUnknownError) as error:
            log.error("paper fills left unwritten", error=str(error))
        finally:
            writer.cancel()
            await asyncio.wait({writer})
            if not writer.cancelled() and (failure := writer.exception()):
                raise failure

    # -- market

    def on_tick(self, tick: Tick) -> None:
        """Match open orders against a tick, on the loop's thread."""
        if fills := self._engine.on_tick(tick, self._now_ns()):
            self._enqueue(fills)
        if self._engine.cancelled:
            self._enqueue_cancelled()

    def on_book(self, book: OrderBook) -> None:
        """Match open orders against an order book, on the loop's thread."""
        if fills := self._engine.on_book(book, self._now_ns()):
            self._enqueue(fills)
        if self._engine.cancelled:
            self._enqueue_cancelled()

    # -- Broker

    async def place(self, request: OrderRequest) -> str:
        async with self._change_lock:
            while self._unwritten:
                # Sell only what is written: a crash discards fills that are not.
                await self.wait_written()
            now = self._clock.now()
            order = self._engine.prepare(f"P-{uuid.uuid4()}", request, self._now_ns())
            try:
                await self._store.insert(order, now)
            except BaseException:
                # If the insert succeeded after all, _restore_orders finds the order.
                self._engine.drop(order)
                raise
            self._known.add(order.broker_order_id)
            self._report([BrokerOrder.of(request, order.broker_order_id, now)])
            self._enqueue(self._engine.start(order, self._now_ns()))
            self._enqueue_cancelled()
            return order.broker_order_id

    async def cancel(self, broker_order_id: str) -> None:
        async with self._change_lock:
            await self._restore_orders()
            if self._engine.cancel(broker_order_id) is None:
                raise VenueRejectedError(f"paper order {broker_order_id} is not open", "not_open")
            self._enqueue([PaperCancel(broker_order_id)])
        await self.wait_written()

    async def find_order(
        self,
        request: OrderRequest,
        sent_at: datetime,  # noqa: ARG002 - client order ids are unique
        known: frozenset[str],
    ) -> OrderMatches:
        async with self._change_lock:
            await self._restore_orders()
            found = await self._store.by_client_order_id(request.client_order_id)
        return OrderMatches(tuple(order for order in found if order.broker_order_id not in known))

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        async with self._change_lock:
            await self._restore_orders()
            return await self._store.orders(since)

    async def fills(self, since: datetime) -> Sequence[Fill]:
        return await self._store.fills(since)

    async def account(self) -> Account:
        return await self._store.account()

    async def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        queue: asyncio.Queue[ExecutionReport] = asyncio.Queue()
        queue.put_nowait(StreamGap("stream opened"))
        self._queues.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._queues.remove(queue)

    # -- writing

    async def _restore_orders(self) -> None:
        """Restore orders written before a restart, or by an insert whose reply was lost."""
        for order, filled, fills in await self._store.open_orders():
            if order.broker_order_id not in self._known:
                self._known.add(order.broker_order_id)
                self._engine.restore(order, filled, fills)

    def _enqueue(self, changes: Sequence[Fill | PaperCancel]) -> None:
        if changes:
            self._unwritten.extend(changes)
            self._wake.set()

    def _enqueue_cancelled(self) -> None:
        self._enqueue([PaperCancel(order_id) for order_id in self._engine.cancelled])
        self._engine.cancelled.clear()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unwritten:
                batch = tuple(self._unwritten)
                try:
                    orders = await self._store.write(batch)
                except FencedOutError as error:
                    self._fenced_out = error
                    break
                except OperationError as error:  # committed or not: a second write is ignored
                    log.warning("paper fills not written; retrying", error=str(error))
                    await self._clock.sleep(_RETRY_INTERVAL_S)
                    continue
                del self._unwritten[: len(batch)]
                self._report([change for change in batch if isinstance(change, Fill)])
                self._report([order for order in orders if order.state is not OrderState.OPEN])
            async with self._written:
                self._written.notify_all()

    async def wait_written(self) -> None:
        """Wait until every change is written; raise OutcomeUnknownError after a timeout."""
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S), self._written:
                await self._written.wait_for(lambda: self._fenced_out or not self._unwritten)
        except TimeoutError:
            raise OutcomeUnknownError(
                f"paper account: no reply of the database within {_WRITE_TIMEOUT_S:g} s"
            ) from None
        if self._fenced_out is not None:
            raise self._fenced_out

    def _report(self, reports: Sequence[ExecutionReport]) -> None:
        for queue in self._queues:
            for report in reports:
                queue.put_nowait(report)

    def _now_ns(self) -> int:
        passed = self._clock.now() - _EPOCH
        return (passed.days * 86_400 + passed.seconds) * 10**9 + passed.microseconds * 1000
