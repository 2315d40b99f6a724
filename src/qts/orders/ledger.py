"""Orders and fills as their venue tells of them, and the positions they make.

    a notice of the stream ─┐                   ┌─▶ the order's row (first, if it was not there)
    a row of the history  ──┴─▶ one transaction ┼─▶ the fill, once by its trade_id
                                                ├─▶ the position, if the order is ours
                                                └─▶ FillReceived on the bus

News come late, twice, and in any order: a fill before its order is acknowledged, or after it was
cancelled. So an order's row only ever adds (see query upsert_order), and fills count by the time
they traded: one that comes late has the position computed anew. A fill of an order that is not
known to be ours is kept, and counts from the moment the order turns out to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Connection, Database, Row
from qts.domain import BrokerOrder, Fill, OperationError, OrderState, Side
from qts.orders.failpoints import failpoint
from qts.orders.messages import FillReceived, OrderClosed
from qts.orders.position import ZERO, PositionState, apply_fills
from qts.orders.queries import SQL
from qts.orders.updates import FillApplied, OrderChanged, OrderListener, OrderUpdate, ignore_update
from qts.outbox import TRADE_EVENT, EventBus, OutboxEvent

log = telemetry.logger("orders")


class LedgerOrder(msgspec.Struct, frozen=True):
    """The row of an order after news of it."""

    attempt_id: UUID | None
    origin: str
    symbol: str
    side: str
    quantity: Decimal | None
    filled: Decimal
    applied: Decimal
    state: str


class Ledger:
    """For one broker. Every public method is one transaction."""

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        broker: str,
        *,
        allow_short: bool = False,
        on_change: OrderListener = ignore_update,
    ) -> None:
        self._database = database
        self._bus = bus
        self._allow_short = allow_short
        self.broker = broker
        self._on_change = on_change

    async def record_fill(self, fill: Fill) -> bool:
        """False when this trade was known."""
        async with self._database.transaction() as tx:
            changes = await self.apply_fill(tx, fill)
            failpoint("before_commit")
        self.notify(changes)
        return bool(changes)

    async def record_order(self, order: BrokerOrder) -> OrderChanged:
        """What is known of it with this."""
        async with self._database.transaction() as tx:
            changed, *more = await self.apply_order(tx, order)
        self.notify((changed, *more))
        if not isinstance(changed, OrderChanged):
            raise AssertionError("an order's own change comes first")
        return changed

    def notify(self, changes: Iterable[OrderUpdate]) -> None:
        for change in changes:
            self._on_change(change)

    # Inside somebody's transaction

    async def apply_order(
        self, tx: Connection, order: BrokerOrder, attempt_id: UUID | None = None
    ) -> list[OrderUpdate]:
        """Take over what is told of it; with an attempt, it is ours from now on."""
        if attempt_id is None and order.client_order_id is not None:
            attempt_id = await self._owner(tx, order)
        row = await tx.fetchrow(
            SQL.upsert_order,
            self.broker,
            order.broker_order_id,
            attempt_id,
            order.client_order_id,
            order.symbol,
            order.side,
            order.type,
            order.quantity,
            order.price,
            order.filled,
            order.state,
            order.placed_at,
        )
        known = _known(row)
        changes: list[OrderUpdate] = [_changed(order.broker_order_id, known)]
        if attempt_id is not None and known.applied:  # fills that came before it was ours
            changes += await self._count(tx, known.symbol)
        await self._close(tx, order.broker_order_id, known)
        return changes

    async def _owner(self, tx: Connection, order: BrokerOrder) -> UUID | None:
        row = await tx.fetchrow(
            SQL.attempt_of, self.broker, order.client_order_id, order.broker_order_id
        )
        if row is None:
            return None
        if row["is_taken"]:
            log.error(
                "two orders have one identifier; the second is not counted as ours",
                identifier=order.client_order_id,
                order=order.broker_order_id,
                symbol=order.symbol,
            )
            return None
        owner: UUID = row["id"]
        return owner

    async def apply_fill(self, tx: Connection, fill: Fill) -> list[OrderUpdate]:
        """Nothing when this trade was known; then nothing changes."""
        await tx.execute(
            SQL.insert_order_from_fill,
            self.broker,
            fill.broker_order_id,
            fill.symbol,
            fill.side,
            fill.at,
        )
        told = await tx.execute(
            SQL.insert_fill,
            self.broker,
            fill.trade_id,
            fill.broker_order_id,
            fill.symbol,
            fill.side,
            fill.quantity,
            fill.price,
            fill.fee,
            fill.at,
        )
        if told == "INSERT 0 0":
            await self._compare(tx, fill)
            return []
        row = await tx.fetchrow(SQL.complete_filled_order, self.broker, fill.broker_order_id)
        known = _known(row)
        changes: list[OrderUpdate] = []
        if known.origin != "FOREIGN":
            changes = await self._count(tx, fill.symbol)
            await self._close(tx, fill.broker_order_id, known)
        if not changes:
            changes = [await self._uncounted(tx, fill, known.attempt_id)]
        return [*changes, _changed(fill.broker_order_id, known)]

    async def _count(self, tx: Connection, symbol: str) -> list[OrderUpdate]:
        """Bring what waits into the position, in the order in which it traded."""
        row = await tx.fetchrow(SQL.lock_position, self.broker, symbol, self._allow_short)
        if row is None:
            raise AssertionError("an upsert answers its row")
        waiting = [_fill(each) for each in await tx.fetch(SQL.waiting_fills, self.broker, symbol)]
        waiting = _fitting(waiting, row)
        if not waiting:
            return []
        last = _place(row["last_traded_at"], row["last_trade_id"])
        if last is None or last <= _key(waiting[0]):
            fills, start = waiting, _book(row)
        else:
            counted = await tx.fetch(SQL.counted_fills, self.broker, symbol)
            fills, start = sorted([*map(_fill, counted), *waiting], key=_key), PositionState()
        book, gains = apply_fills(fills, start)
        await self._write(tx, symbol, book, fills, gains)
        return [await self._tell(tx, fill, book) for fill in waiting]

    async def _write(
        self,
        tx: Connection,
        symbol: str,
        book: PositionState,
        fills: Sequence[Fill],
        gains: Sequence[Decimal],
    ) -> None:
        ids = [fill.trade_id for fill in fills]
        await tx.execute(SQL.count_fills, self.broker, ids, gains)
        told = await tx.execute(
            SQL.set_position,
            self.broker,
            symbol,
            book.quantity,
            book.average_price,
            book.realised_pnl,
            book.fees,
            book.opened_at,
            fills[-1].at,
            ids[-1],
        )
        if told != "UPDATE 1":
            raise OperationError(f"the fills of {symbol} do not add up to {book.quantity}")

    async def _tell(self, tx: Connection, fill: Fill, book: PositionState) -> FillApplied:
        attempt_id = await tx.fetchval(SQL.attempt_of_order, self.broker, fill.broker_order_id)
        payload = FillReceived(
            trade_id=fill.trade_id,
            broker_order_id=fill.broker_order_id,
            symbol=fill.symbol,
            side=fill.side,
            quantity=fill.quantity,
            price=fill.price,
            fee=fill.fee,
            order_attempt_id=attempt_id,
            position_quantity=book.quantity,
            average_price=book.average_price,
            realised_pnl=book.realised_pnl,
        )
        await self._bus.publish(tx, OutboxEvent.of(TRADE_EVENT, payload, ("Market", fill.symbol)))
        return _applied(fill, attempt_id, True, book)

    async def _uncounted(self, tx: Connection, fill: Fill, attempt_id: UUID | None) -> FillApplied:
        if attempt_id is not None:
            log.error(
                "a fill would make the position negative; it is kept and does not count yet",
                symbol=fill.symbol,
                trade=fill.trade_id,
                quantity=str(fill.quantity),
            )
        row = await tx.fetchrow(SQL.get_position, self.broker, fill.symbol)
        return _applied(fill, attempt_id, False, _book(row) if row is not None else PositionState())

    async def _close(self, tx: Connection, order_id: str, known: LedgerOrder) -> None:
        """An order that trades no more ends its intent, once all of its fills are here."""
        if known.attempt_id is None or known.state == "OPEN" or known.applied < known.filled:
            return
        status = "COMPLETED" if known.state == "FILLED" else "CANCELED"
        told = await tx.execute(SQL.close_intent, known.attempt_id, status, known.state)
        if told == "UPDATE 0":
            return
        payload = OrderClosed(
            broker_order_id=order_id,
            order_attempt_id=known.attempt_id,
            symbol=known.symbol,
            state=known.state,
            filled=known.applied,
        )
        await self._bus.publish(tx, OutboxEvent.of(TRADE_EVENT, payload, ("Market", known.symbol)))

    async def _compare(self, tx: Connection, fill: Fill) -> None:
        row = await tx.fetchrow(SQL.get_fill, self.broker, fill.trade_id)
        if row is not None and (row["broker_order_id"], row["quantity"], row["price"]) != (
            fill.broker_order_id,
            fill.quantity,
            fill.price,
        ):
            log.error(
                "two trades have one id; the second was not counted",
                trade=fill.trade_id,
                order=fill.broker_order_id,
                symbol=fill.symbol,
            )


Place = tuple[datetime, str]
_KNOWN = (
    "order_attempt_id",
    "origin",
    "symbol",
    "side",
    "quantity",
    "filled",
    "applied",
    "state",
)


def _known(row: Row | None) -> LedgerOrder:
    if row is None:
        raise AssertionError("an upsert answers its row")
    return LedgerOrder(*(row[name] for name in _KNOWN))


def _key(fill: Fill) -> Place:
    return fill.at, fill.trade_id


def _place(at: datetime | None, trade_id: str | None) -> Place | None:
    return None if at is None or trade_id is None else (at, trade_id)


def _fitting(waiting: list[Fill], row: Row) -> list[Fill]:
    """Those that leave a long-only position at zero or above; the youngest sales wait."""
    if row["allows_short"]:
        return waiting
    left = row["quantity"] + sum((fill.quantity * fill.side.sign for fill in waiting), ZERO)
    fitting = list(waiting)
    for fill in reversed(waiting):
        if left >= 0:
            break
        if fill.side is Side.SELL:
            fitting.remove(fill)
            left += fill.quantity
    return fitting


def _book(row: Row) -> PositionState:
    return PositionState(
        quantity=row["quantity"],
        average_price=row["average_price"],
        realised_pnl=row["realised_pnl"],
        fees=row["fees"],
        opened_at=row["opened_at"],
    )


def _fill(row: Row) -> Fill:
    return Fill(
        trade_id=row["trade_id"],
        broker_order_id=row["broker_order_id"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        quantity=row["quantity"],
        price=row["price"],
        fee=row["fee"],
        at=row["traded_at"],
    )


def _applied(
    fill: Fill, attempt_id: UUID | None, counted: bool, book: PositionState
) -> FillApplied:
    return FillApplied(
        fill=fill,
        attempt_id=attempt_id,
        counted=counted,
        position=book.quantity,
        average_price=book.average_price,
        realised_pnl=book.realised_pnl,
    )


def _changed(order_id: str, known: LedgerOrder) -> OrderChanged:
    return OrderChanged(
        order_id=order_id,
        symbol=known.symbol,
        state=OrderState(known.state),
        quantity=known.quantity,
        filled=known.filled,
        attempt_id=known.attempt_id,
    )
