"""Orders and fills as their venue reports them, and the positions they make.

    a report of the stream ─┐                   ┌─▶ the order's row (inserted if missing)
    a row of the history  ──┴─▶ one transaction ┼─▶ the fill, once by its trade_id
                                                ├─▶ the position, if the order is ours
                                                └─▶ FillReceived on the bus

Reports arrive late, twice and in any order: a fill before its order is acknowledged, or after it
was cancelled. So an order's row only ever adds (query upsert_order), and fills apply by the time of
their trade: a late one has the position recomputed. A fill of an order that is not known to be ours
is stored, and applies from the moment the order turns out to be.

Listeners get the changes in the order of their commits: whatever may apply fills of a symbol holds
`in_order` of that symbol until it has notified them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from decimal import Decimal
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from qts import telemetry
from qts.database import Connection, Database, Row
from qts.domain import AccountKey, BrokerOrder, Fill, OperationError, OrderState, Side
from qts.orders.failpoints import failpoint
from qts.orders.ledger_values import (
    SQL,
    ZERO,
    FillApplied,
    FillReported,
    IntentRef,
    LedgerOrder,
    OrderChanged,
    OrderListener,
    OrderUpdate,
    PositionState,
    applicable_fills,
    apply_fills,
    fill_of,
    known_order,
    last_trade_key,
    position_state,
    trade_key,
)
from qts.orders.messages import FillReceived, OrderClosed, RaiseCode
from qts.outbox import TRADE_COMMAND, TRADE_EVENT, EventBus, OutboxEvent

log = telemetry.logger("orders")
REPORT_INTERVAL_S = 3600.0


class Ledger:
    """The ledger of one account: orders, fills and positions.

    `on_change` is None where nothing in this process follows the account.
    """

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        key: AccountKey,
        *,
        on_change: OrderListener | None,
        allow_short: bool = False,
    ) -> None:
        self._database = database
        self._bus = bus
        self._allow_short = allow_short
        self.key = key
        self._on_change = on_change
        self._reported = telemetry.LogThrottle()
        self._in_order: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def record_fill(self, fill: Fill) -> bool:
        """Record a fill in one transaction; return False when it was known."""
        self.notify((FillReported(fill),))
        async with self.in_order(fill.symbol):
            async with self._database.transaction() as tx:
                changes = await self.apply_fill(tx, fill)
                failpoint("before_commit")
            self.notify(changes)
        return bool(changes)

    async def record_order(self, order: BrokerOrder) -> OrderChanged:
        """Record an order in one transaction and return its new state."""
        async with self.in_order(order.symbol):
            async with self._database.transaction() as tx:
                changes = await self.apply_order(tx, order)
            self.notify(changes)
        if not isinstance(changes[-1], OrderChanged):
            raise AssertionError("an order's own change comes last")
        return changes[-1]

    def notify(self, changes: Iterable[OrderUpdate]) -> None:
        if self._on_change is not None:
            for change in changes:
                self._on_change(change)

    def in_order(self, symbol: str) -> asyncio.Lock:
        """Return the lock to hold from before the transaction until its changes are notified.

        Two commits of one position are ordered by the database; their replies may be read here in
        the other order.
        """
        return self._in_order.setdefault(symbol, asyncio.Lock())

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
        known = known_order(row)
        changes: list[OrderUpdate] = []
        if attempt_id is not None and known.applied:  # fills that arrived before it was ours
            changes = await self._count(tx, known.symbol)
        closed = await self._close(tx, order.broker_order_id, known)
        return [*changes, _changed(order.broker_order_id, known, closed)]

    async def _owner(self, tx: Connection, order: BrokerOrder) -> UUID | None:
        row = await tx.fetchrow(
            SQL.attempt_of, *self.key, order.client_order_id, order.broker_order_id
        )
        if row is None:
            return None
        if row["is_taken"]:
            text = f"order {order.broker_order_id} has the client order id of another one"
            await self._raise_inconsistent(tx, order.symbol, text)
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
        known = known_order(row)
        changes: list[OrderUpdate] = []
        closed: IntentRef | None = None
        if known.origin != "FOREIGN":
            changes = await self._count(tx, fill.symbol)
            closed = await self._close(tx, fill.broker_order_id, known)
        if not changes:
            changes = [await self._uncounted(tx, fill, known.attempt_id)]
        return [*changes, _changed(fill.broker_order_id, known, closed)]

    async def _count(self, tx: Connection, symbol: str) -> list[OrderUpdate]:
        """Apply waiting fills to the position, in the order of their trades."""
        row = await tx.fetchrow(SQL.lock_position, *self.key, symbol, self._allow_short)
        if row is None:
            raise AssertionError("an upsert returns its row")
        waiting = [fill_of(each) for each in await tx.fetch(SQL.waiting_fills, *self.key, symbol)]
        waiting = applicable_fills(waiting, row)
        if not waiting:
            return []
        last = last_trade_key(row["last_traded_at"], row["last_trade_id"])
        if last is None or last <= trade_key(waiting[0]):
            fills, start = waiting, position_state(row)
        else:
            counted = await tx.fetch(SQL.counted_fills, *self.key, symbol)
            fills = sorted([*map(fill_of, counted), *waiting], key=trade_key)
            start = PositionState()
        position, realised = apply_fills(fills, start)
        await self._write(tx, symbol, position, fills, realised)
        left: dict[str, Decimal] = {}  # of each order, in fills that are not published yet
        for fill in waiting:
            left[fill.broker_order_id] = left.get(fill.broker_order_id, ZERO) + fill.quantity
        published = list[OrderUpdate]()
        for fill in waiting:
            left[fill.broker_order_id] -= fill.quantity
            later = left[fill.broker_order_id]
            published.append(await self._publish_fill(tx, fill, position, later))
        return published

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
        self, tx: Connection, fill: Fill, position: PositionState, later: Decimal
    ) -> FillApplied:
        order = await tx.fetchrow(SQL.intent_of_order, *self.key, fill.broker_order_id)
        if order is None:
            raise AssertionError("a fill has its order")
        attempt_id = order["order_attempt_id"]
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
        await self._publish(tx, payload, fill.symbol, order["intent_id"])
        applied = _applied(fill, attempt_id, True, position)
        if order["intent_id"] is None:
            return applied
        return msgspec.structs.replace(
            applied,
            intent=IntentRef(order["intent_id"], order["strategy_key"]),
            remaining=max(order["remaining"] + later, ZERO),
        )

    async def _uncounted(self, tx: Connection, fill: Fill, attempt_id: UUID | None) -> FillApplied:
        if attempt_id is not None:
            text = f"fill {fill.trade_id} would make the position negative"
            await self._raise_inconsistent(tx, fill.symbol, text)
            log.error(
                "fill would make position negative; not applied",
                symbol=fill.symbol,
                trade_id=fill.trade_id,
                quantity=str(fill.quantity),
            )
        row = await tx.fetchrow(SQL.get_position, *self.key, fill.symbol)
        return _applied(
            fill, attempt_id, False, position_state(row) if row is not None else PositionState()
        )

    async def _close(self, tx: Connection, order_id: str, known: LedgerOrder) -> IntentRef | None:
        """End the intent of a finished order, once all of its fills are applied; return it."""
        if known.attempt_id is None or known.state == "OPEN" or known.applied < known.filled:
            return None
        status = "COMPLETED" if known.state == "FILLED" else "CANCELED"
        closed = await tx.fetchrow(SQL.close_intent, known.attempt_id, status, known.state)
        if closed is None:
            return None
        if closed["is_overdue"] and known.state == "CANCELLED":
            await self._bus.publish(tx, _not_filled_in_time(self.key, known, closed))
        payload = OrderClosed(
            broker_order_id=order_id,
            order_attempt_id=known.attempt_id,
            symbol=known.symbol,
            state=known.state,
            filled=known.applied,
        )
        await self._publish(tx, payload, known.symbol, closed["id"])
        return IntentRef(closed["id"], closed["strategy_key"])

    async def _publish(
        self, tx: Connection, payload: msgspec.Struct, symbol: str, intent_id: UUID | None
    ) -> None:
        """Publish in the trace of the order, where it has one."""
        trace_id = telemetry.trace_id_of(intent_id)
        more = {"trace_id": trace_id} if trace_id else {}
        event = OutboxEvent.of(TRADE_EVENT, payload, ("Market", symbol), account=self.key, **more)
        await self._bus.publish(tx, event)

    async def _raise_inconsistent(self, tx: Connection, symbol: str, text: str) -> None:
        """Raise AN030 with the transaction, at most once an hour for the same finding."""
        if self._reported.every(REPORT_INTERVAL_S, text):
            code, market = RaiseCode("AN030", f"{symbol}: {text}"), ("Market", symbol)
            event = OutboxEvent.of(TRADE_COMMAND, code, market, account=self.key)
            await self._bus.publish(tx, event)

    async def _check_duplicate(self, tx: Connection, fill: Fill) -> None:
        row = await tx.fetchrow(SQL.get_fill, *self.key, fill.trade_id)
        if row is not None and (row["broker_order_id"], row["quantity"], row["price"]) != (
            fill.broker_order_id,
            fill.quantity,
            fill.price,
        ):
            text = f"trade id {fill.trade_id} is reported with other figures"
            await self._raise_inconsistent(tx, fill.symbol, text)
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


def _changed(order_id: str, known: LedgerOrder, closed: IntentRef | None) -> OrderChanged:
    return OrderChanged(
        order_id=order_id,
        symbol=known.symbol,
        side=Side(known.side),
        state=OrderState(known.state),
        quantity=known.quantity,
        filled=known.filled,
        attempt_id=known.attempt_id,
        closed=closed,
    )
