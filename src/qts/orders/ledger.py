"""Orders and fills as their venue reports them, and the positions they make.

    a report of the stream ─┐                   ┌─▶ the order's row (inserted if missing)
    a row of the history  ──┴─▶ one transaction ┼─▶ the fill, once by its trade_id
                                                ├─▶ the position, if the order is ours
                                                └─▶ FillReceived on the bus

Reports arrive late, twice and in any order: a fill before its order is acknowledged, or after it
was cancelled. So an order's row only ever adds (query upsert_order), and fills apply by the time of
their trade: a late one has the position recomputed. A fill of an order that is not known to be ours
is stored, and applies from the moment the order turns out to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Connection, Database, Row
from qts.domain import AccountKey, BrokerOrder, Fill, OperationError, OrderState, Side
from qts.orders.failpoints import failpoint
from qts.orders.messages import FillReceived, OrderClosed, RaiseCode
from qts.orders.position import ZERO, PositionState, apply_fills
from qts.orders.queries import SQL
from qts.orders.updates import FillApplied, OrderChanged, OrderListener, OrderUpdate, ignore_update
from qts.outbox import TRADE_COMMAND, TRADE_EVENT, EventBus, OutboxEvent

log = telemetry.logger("orders")


class LedgerOrder(msgspec.Struct, frozen=True):
    """The row of an order after an update."""

    attempt_id: UUID | None
    origin: str
    symbol: str
    side: str
    quantity: Decimal | None
    filled: Decimal
    applied: Decimal
    state: str


class Ledger:
    """The ledger of one account: orders, fills and positions."""

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        key: AccountKey,
        *,
        allow_short: bool = False,
        on_change: OrderListener = ignore_update,
    ) -> None:
        self._database = database
        self._bus = bus
        self._allow_short = allow_short
        self.key = key
        self._on_change = on_change

    async def record_fill(self, fill: Fill) -> bool:
        """Record a fill in one transaction; return False when it was known."""
        async with self._database.transaction() as tx:
            changes = await self.apply_fill(tx, fill)
            failpoint("before_commit")
        self.notify(changes)
        return bool(changes)

    async def record_order(self, order: BrokerOrder) -> OrderChanged:
        """Record an order in one transaction and return its new state."""
        async with self._database.transaction() as tx:
            changed, *more = await self.apply_order(tx, order)
        self.notify((changed, *more))
        if not isinstance(changed, OrderChanged):
            raise AssertionError("an order's own change comes first")
        return changed

    def notify(self, changes: Iterable[OrderUpdate]) -> None:
        for change in changes:
            self._on_change(change)

    # --- inside the caller's transaction --------------------------------------------------------

    async def apply_order(
        self, tx: Connection, order: BrokerOrder, attempt_id: UUID | None = None
    ) -> list[OrderUpdate]:
        """Merge a report of the order; with an attempt, it is ours from now on."""
        if attempt_id is None and order.client_order_id is not None:
            attempt_id = await self._owner(tx, order)
        row = await tx.fetchrow(
            SQL.upsert_order,
            *self.key,
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
        if attempt_id is not None and known.applied:  # fills that arrived before it was ours
            changes += await self._count(tx, known.symbol)
        await self._close(tx, order.broker_order_id, known)
        return changes

    async def _owner(self, tx: Connection, order: BrokerOrder) -> UUID | None:
        row = await tx.fetchrow(
            SQL.attempt_of, *self.key, order.client_order_id, order.broker_order_id
        )
        if row is None:
            return None
        if row["is_taken"]:
            log.error(
                "client order id used twice; order ignored",
                client_order_id=order.client_order_id,
                broker_order_id=order.broker_order_id,
                symbol=order.symbol,
            )
            return None
        owner: UUID = row["id"]
        return owner

    async def apply_fill(self, tx: Connection, fill: Fill) -> list[OrderUpdate]:
        """Apply a fill once and return its changes; none when it was known."""
        await tx.execute(
            SQL.insert_order_from_fill,
            *self.key,
            fill.broker_order_id,
            fill.symbol,
            fill.side,
            fill.at,
        )
        status = await tx.execute(
            SQL.insert_fill,
            *self.key,
            fill.trade_id,
            fill.broker_order_id,
            fill.symbol,
            fill.side,
            fill.quantity,
            fill.price,
            fill.fee,
            fill.at,
        )
        if status == "INSERT 0 0":
            await self._check_duplicate(tx, fill)
            return []
        row = await tx.fetchrow(SQL.complete_filled_order, *self.key, fill.broker_order_id)
        known = _known(row)
        changes: list[OrderUpdate] = []
        if known.origin != "FOREIGN":
            changes = await self._count(tx, fill.symbol)
            await self._close(tx, fill.broker_order_id, known)
        if not changes:
            changes = [await self._uncounted(tx, fill, known.attempt_id)]
        return [*changes, _changed(fill.broker_order_id, known)]

    async def _count(self, tx: Connection, symbol: str) -> list[OrderUpdate]:
        """Apply waiting fills to the position, in the order of their trades."""
        row = await tx.fetchrow(SQL.lock_position, *self.key, symbol, self._allow_short)
        if row is None:
            raise AssertionError("an upsert returns its row")
        waiting = [_fill(each) for each in await tx.fetch(SQL.waiting_fills, *self.key, symbol)]
        waiting = _applicable(waiting, row)
        if not waiting:
            return []
        last = _trade_key(row["last_traded_at"], row["last_trade_id"])
        if last is None or last <= _key(waiting[0]):
            fills, start = waiting, _position_state(row)
        else:
            counted = await tx.fetch(SQL.counted_fills, *self.key, symbol)
            fills, start = sorted([*map(_fill, counted), *waiting], key=_key), PositionState()
        position, realised = apply_fills(fills, start)
        await self._write(tx, symbol, position, fills, realised)
        return [await self._publish_fill(tx, fill, position) for fill in waiting]

    async def _write(
        self,
        tx: Connection,
        symbol: str,
        position: PositionState,
        fills: Sequence[Fill],
        realised: Sequence[Decimal],
    ) -> None:
        ids = [fill.trade_id for fill in fills]
        await tx.execute(SQL.count_fills, *self.key, ids, realised)
        status = await tx.execute(
            SQL.set_position,
            *self.key,
            symbol,
            position.quantity,
            position.average_price,
            position.realised_pnl,
            position.fees,
            position.opened_at,
            fills[-1].at,
            ids[-1],
        )
        if status != "UPDATE 1":
            raise OperationError(f"the fills of {symbol} do not add up to {position.quantity}")

    async def _publish_fill(
        self, tx: Connection, fill: Fill, position: PositionState
    ) -> FillApplied:
        attempt_id = await tx.fetchval(SQL.attempt_of_order, *self.key, fill.broker_order_id)
        payload = FillReceived(
            trade_id=fill.trade_id,
            broker_order_id=fill.broker_order_id,
            symbol=fill.symbol,
            side=fill.side,
            quantity=fill.quantity,
            price=fill.price,
            fee=fill.fee,
            order_attempt_id=attempt_id,
            position_quantity=position.quantity,
            average_price=position.average_price,
            realised_pnl=position.realised_pnl,
        )
        await self._publish(tx, payload, fill.symbol)
        return _applied(fill, attempt_id, True, position)

    async def _uncounted(self, tx: Connection, fill: Fill, attempt_id: UUID | None) -> FillApplied:
        if attempt_id is not None:
            log.error(
                "fill would make position negative; not applied",
                symbol=fill.symbol,
                trade_id=fill.trade_id,
                quantity=str(fill.quantity),
            )
        row = await tx.fetchrow(SQL.get_position, *self.key, fill.symbol)
        return _applied(
            fill, attempt_id, False, _position_state(row) if row is not None else PositionState()
        )

    async def _close(self, tx: Connection, order_id: str, known: LedgerOrder) -> None:
        """End the intent of a finished order, once all of its fills are applied."""
        if known.attempt_id is None or known.state == "OPEN" or known.applied < known.filled:
            return
        status = "COMPLETED" if known.state == "FILLED" else "CANCELED"
        closed = await tx.fetchrow(SQL.close_intent, known.attempt_id, status, known.state)
        if closed is None:
            return
        if closed["is_overdue"] and known.state == "CANCELLED":
            await self._bus.publish(tx, _not_filled_in_time(self.key, known, closed))
        payload = OrderClosed(
            broker_order_id=order_id,
            order_attempt_id=known.attempt_id,
            symbol=known.symbol,
            state=known.state,
            filled=known.applied,
        )
        await self._publish(tx, payload, known.symbol)

    async def _publish(self, tx: Connection, payload: msgspec.Struct, symbol: str) -> None:
        event = OutboxEvent.of(TRADE_EVENT, payload, ("Market", symbol), account=self.key)
        await self._bus.publish(tx, event)

    async def _check_duplicate(self, tx: Connection, fill: Fill) -> None:
        row = await tx.fetchrow(SQL.get_fill, *self.key, fill.trade_id)
        if row is not None and (row["broker_order_id"], row["quantity"], row["price"]) != (
            fill.broker_order_id,
            fill.quantity,
            fill.price,
        ):
            log.error(
                "trade id used twice; fill ignored",
                trade_id=fill.trade_id,
                broker_order_id=fill.broker_order_id,
                symbol=fill.symbol,
            )


def _not_filled_in_time(key: AccountKey, known: LedgerOrder, intent: Row) -> OutboxEvent:
    """Return the command to raise FS093: it is as durable as the cancel that it reports."""
    ordered, filled = intent["quantity"].normalize(), known.applied.normalize()
    text = (
        f"{intent['side']} {known.symbol} of {intent['strategy_key']}: {filled:f} of {ordered:f} "
        f"filled, {ordered - filled:f} cancelled"
    )
    aggregate = ("OrderAttempt", str(known.attempt_id))
    return OutboxEvent.of(
        TRADE_COMMAND, RaiseCode("FS093", text), aggregate, account=key, market=known.symbol
    )


TradeKey = tuple[datetime, str]
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
        raise AssertionError("an upsert returns its row")
    return LedgerOrder(*(row[name] for name in _KNOWN))


def _key(fill: Fill) -> TradeKey:
    return fill.at, fill.trade_id


def _trade_key(at: datetime | None, trade_id: str | None) -> TradeKey | None:
    return None if at is None or trade_id is None else (at, trade_id)


def _applicable(waiting: list[Fill], row: Row) -> list[Fill]:
    """Return the fills that keep a long-only position at zero or above; the newest sells wait."""
    if row["allows_short"]:
        return waiting
    left = row["quantity"] + sum((fill.quantity * fill.side.sign for fill in waiting), ZERO)
    applicable = list(waiting)
    for fill in reversed(waiting):
        if left >= 0:
            break
        if fill.side is Side.SELL:
            applicable.remove(fill)
            left += fill.quantity
    return applicable


def _position_state(row: Row) -> PositionState:
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
    fill: Fill, attempt_id: UUID | None, counted: bool, position: PositionState
) -> FillApplied:
    return FillApplied(
        fill=fill,
        attempt_id=attempt_id,
        counted=counted,
        position=position.quantity,
        average_price=position.average_price,
        realised_pnl=position.realised_pnl,
        opened_at=position.opened_at,
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
