"""Paper broker: an in-process venue with its accounts in PostgreSQL and no network client.

    place ──▶ order written ──▶ engine ── tick ──▶ fills ──▶ written ──▶ reported
                                                     │          ▲
                                                     └─ retried ┘ while the database is down

A fill counts once it is written. A crash before that discards it, and its order is open again
after the restart. Opening an account fences out every earlier opener. The module holds no venue
client, so nothing can reach a real venue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple, Self

from asyncpg import UniqueViolationError

from qts import telemetry
from qts.brokers.config import FeesConfig, PaperConfig, paper_account
from qts.brokers.paper_account import Lot, PaperAccount, account_of
from qts.brokers.paper_matching import PaperMatchingEngine, PaperOrder
from qts.brokers.venue import ExecutionReport, OrderMatches, StreamGap
from qts.database import Connection, Database, Row
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
    OrderType,
    OutcomeUnknownError,
    Side,
    Tick,
    UnreachableError,
)
from qts.venues import VenueRejectedError

log = telemetry.logger("brokers")

_RETRY_INTERVAL_S = 0.5
_WRITE_TIMEOUT_S = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_CLAIM = """
    INSERT INTO paper_book (name, epoch, opened_at) VALUES ($1, 1, $2)
    ON CONFLICT (name) DO UPDATE SET epoch = paper_book.epoch + 1, opened_at = $2
    RETURNING epoch
"""
_FENCE = "SELECT 1 FROM paper_book WHERE name = $1 AND epoch = $2 FOR SHARE"
_CASH = """
    INSERT INTO paper_account (book, symbol, quantity, cost) VALUES ($1, 'KRW', $2, $2)
    ON CONFLICT DO NOTHING
"""
_ORDER = """
    INSERT INTO paper_order
        (order_id, book, identifier, symbol, side, type, quantity, price, placed_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_FILL = """
    INSERT INTO paper_fill (trade_id, order_id, book, symbol, side, quantity, price, fee, at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (trade_id) DO NOTHING
"""
_CANCEL = "UPDATE paper_order SET state = 'CANCELLED' WHERE order_id = $1 AND state = 'OPEN'"
_OPEN = """
    SELECT o.*, (SELECT count(*) FROM paper_fill f WHERE f.order_id = o.order_id) AS fills
    FROM paper_order o WHERE book = $1 AND state = 'OPEN' ORDER BY placed_at, order_id
"""


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
        self._enqueue_matched(self._engine.on_tick(tick, self._now_ns()))

    def on_book(self, book: OrderBook) -> None:
        """Match open orders against an order book, on the loop's thread."""
        self._enqueue_matched(self._engine.on_book(book, self._now_ns()))

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
            self._enqueue_matched(self._engine.start(order, self._now_ns()))
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

    def _enqueue_matched(self, fills: Sequence[Fill]) -> None:
        """Enqueue the fills, and then the orders that the matching cancelled."""
        self._enqueue(fills)
        if self._engine.cancelled:
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


class PaperCancel(NamedTuple):
    broker_order_id: str


class PaperStore:
    """Orders, fills and balance of one paper account; every write checks the opener's epoch."""

    def __init__(self, database: Database, account: str, epoch: int) -> None:
        self._database = database
        self._account = account
        self._epoch = epoch

    @classmethod
    async def claim(
        cls, database: Database, account: str, cash: Decimal, at: datetime
    ) -> PaperStore:
        async with database.transaction() as tx:
            epoch = await tx.fetchval(_CLAIM, account, at)
            await tx.execute(_CASH, account, cash)
        return cls(database, account, epoch)

    # -- writes

    async def insert(self, order: PaperOrder, placed_at: datetime) -> None:
        request = order.request
        try:
            async with self._fenced() as tx:
                await tx.execute(
                    _ORDER, order.broker_order_id, self._account, request.client_order_id,
                    request.symbol, request.side, request.type, request.quantity,
                    request.price, placed_at,
                )  # fmt: skip
        except UniqueViolationError:
            raise VenueRejectedError(
                f"client order id {request.client_order_id} was used before", "identifier_used"
            ) from None

    async def write(self, changes: Sequence[Fill | PaperCancel]) -> list[BrokerOrder]:
        """Apply the changes, each at most once however often written; return the orders touched."""
        async with self._fenced() as tx:
            for change in changes:
                if isinstance(change, PaperCancel):
                    await tx.execute(_CANCEL, change.broker_order_id)
                else:
                    await tx.execute(
                        _FILL, change.trade_id, change.broker_order_id, self._account,
                        change.symbol, change.side, change.quantity, change.price,
                        change.fee, change.at,
                    )  # fmt: skip
            touched = list({change.broker_order_id for change in changes})
            rows = await tx.fetch("SELECT * FROM paper_order WHERE order_id = ANY($1)", touched)
        return [order_of(row) for row in rows]

    @asynccontextmanager
    async def _fenced(self) -> AsyncIterator[Connection]:
        async with self._database.transaction() as tx:
            if await tx.fetchval(_FENCE, self._account, self._epoch) is None:
                raise FencedOutError(
                    f"the paper account {self._account} was opened by another process"
                )
            yield tx

    # -- reads

    async def open_orders(self) -> list[tuple[PaperOrder, Decimal, int]]:
        """Return the open orders, each with its filled quantity and number of fills."""
        rows = await self._database.fetch(_OPEN, self._account)
        return [
            (PaperOrder(row["order_id"], request_of(row), 0), row["filled"], row["fills"])
            for row in rows
        ]

    async def lots(self) -> tuple[Decimal, dict[str, Lot]]:
        """Return the cash and the lots of every symbol."""
        rows = await self._database.fetch(
            "SELECT symbol, quantity, cost FROM paper_account WHERE book = $1", self._account
        )
        lots = {row["symbol"]: Lot(row["quantity"], row["cost"]) for row in rows}
        cash = lots.pop("KRW").quantity
        return cash, {symbol: lot for symbol, lot in lots.items() if lot.quantity}

    async def account(self) -> Account:
        return account_of(*await self.lots())

    async def by_client_order_id(self, client_order_id: str) -> list[BrokerOrder]:
        return await self._orders("identifier = $2", client_order_id)

    async def orders(self, since: datetime) -> list[BrokerOrder]:
        return await self._orders("(state = 'OPEN' OR placed_at >= $2)", since)

    async def _orders(self, condition: str, value: object) -> list[BrokerOrder]:
        query = f"SELECT * FROM paper_order WHERE book = $1 AND {condition} ORDER BY placed_at"  # noqa: S608 - two fixed conditions
        return [order_of(row) for row in await self._database.fetch(query, self._account, value)]

    async def fills(self, since: datetime) -> list[Fill]:
        rows = await self._database.fetch(
            "SELECT * FROM paper_fill WHERE book = $1 AND at >= $2 ORDER BY number",
            self._account,
            since,
        )
        return [fill_of(row) for row in rows]


class FencedOutError(UnreachableError):
    """Write refused: a later process has opened the account. Nothing was written."""


def request_of(row: Row) -> OrderRequest:
    return OrderRequest(
        client_order_id=row["identifier"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        type=OrderType(row["type"]),
        quantity=row["quantity"],
        price=row["price"],
    )


def order_of(row: Row) -> BrokerOrder:
    return BrokerOrder.of(
        request_of(row), row["order_id"], row["placed_at"], row["filled"], OrderState(row["state"])
    )


def fill_of(row: Row) -> Fill:
    return Fill(
        trade_id=row["trade_id"],
        broker_order_id=row["order_id"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        quantity=row["quantity"],
        price=row["price"],
        fee=row["fee"],
        at=row["at"],
    )
