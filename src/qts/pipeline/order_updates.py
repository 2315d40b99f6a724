"""Order updates of the ledger, published in lane P0 in the order of their commits.

    FillReported    ─▶ FILL_RECEIVED                          the venue's report has arrived
    FillApplied     ─▶ POSITION_UPDATE, then FILL_PARTIAL or FILL_CONFIRMED
    AttemptChanged  ─▶ ORDER_SENT, ORDER_REJECTED or ORDER_CANCELLED
    OrderChanged    ─▶ ORDER_CANCELLED, where it ended its intent so

What an update means for portfolio, stops and strategies is in order_handlers.py.
"""

from __future__ import annotations

from collections.abc import Callable

from qts.domain import AttemptState, Fill, OrderState
from qts.events import AsyncPublisher
from qts.events import payloads as p
from qts.orders import (
    AttemptChanged,
    FillApplied,
    FillReported,
    IntentRef,
    OrderChanged,
    OrderUpdate,
    SuspensionChanged,
)
from qts.pipeline.portfolio import cash_change
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion

_EVENTS = {
    AttemptState.SENT: "ORDER_SENT",
    AttemptState.ACKED: "ORDER_SENT",
    AttemptState.UNKNOWN: "ORDER_SENT",
    AttemptState.REJECTED: "ORDER_REJECTED",
    AttemptState.ABSENT: "ORDER_REJECTED",
    AttemptState.THROTTLED: "ORDER_REJECTED",
    AttemptState.SUSPENDED: "ORDER_CANCELLED",
}


class OrderUpdatePublisher:
    """An `OrderListener` for one event loop; `trip` raises a fail-safe code."""

    def __init__(
        self,
        publisher: AsyncPublisher,
        positions: PositionSync,
        version: AccountVersion,
        trip: Callable[[str, str], None],
    ) -> None:
        self._publisher = publisher
        self._emit = publisher.emit
        self._positions = positions
        self._version = version
        self._trip = trip

    def __call__(self, change: OrderUpdate) -> None:
        if isinstance(change, FillApplied) and change.counted:
            self._positions.expect(change)
        if not self._publisher.is_closed:  # else the positions follow from the ledger
            self._publish(change)

    def _publish(self, change: OrderUpdate) -> None:
        match change:
            case FillReported():
                self._emit("FILL_RECEIVED", _fill_payload(change.fill))
            case FillApplied(counted=True):
                self._emit("POSITION_UPDATE", position_update(change))
                name = "FILL_PARTIAL" if change.remaining else "FILL_CONFIRMED"
                self._emit(name, fill_update(change))
            case AttemptChanged() if name := _EVENTS.get(change.state, ""):
                self._emit(name, _attempt_payload(change))
            case OrderChanged(closed=IntentRef() as intent, state=OrderState.CANCELLED):
                self._emit("ORDER_CANCELLED", _cancelled_payload(change, intent))
            case SuspensionChanged():
                self._version.advance()
                if change.suspended:
                    self._trip("FS111", f"{change.symbol}: {change.code}")
            case _:  # changes the account state alone
                self._version.advance()


def position_update(change: FillApplied) -> p.PositionUpdate:
    opened_at = change.opened_at
    return p.PositionUpdate(
        symbol=change.fill.symbol,
        qty=change.position,
        average_price=change.average_price,
        cash_change=cash_change(change.fill),
        opened_at=opened_at.timestamp() if opened_at is not None else None,
        trade_id=change.fill.trade_id,
    )


def fill_update(change: FillApplied) -> p.FillPayload:
    return _fill_payload(change.fill, change)


def _fill_payload(fill: Fill, applied: FillApplied | None = None) -> p.FillPayload:
    intent = applied.intent if applied is not None else None
    return p.FillPayload(
        order_id=fill.broker_order_id,
        symbol=fill.symbol,
        filled_qty=fill.quantity,
        filled_price=fill.price,
        filled_time=fill.at.timestamp(),
        side=fill.side,
        remaining_qty=applied.remaining if applied is not None else 0.0,
        fee=fill.fee,
        trade_id=fill.trade_id,
        intent_id=str(intent.intent_id) if intent else "",
        strategy_type=intent.strategy_key if intent else "",
    )


def _attempt_payload(change: AttemptChanged) -> p.OrderUpdatePayload:
    return p.OrderUpdatePayload(
        order_id=change.order_id or str(change.attempt_id),
        symbol=change.symbol,
        reason=change.code or change.reason,
        side=change.side,
        qty=change.quantity,
        price=change.price or 0.0,
        state=change.state,
        intent_id=str(change.intent_id),
        attempt_id=str(change.attempt_id),
        strategy_type=change.strategy_key,
        is_last=change.is_last,
    )


def _cancelled_payload(change: OrderChanged, intent: IntentRef) -> p.OrderUpdatePayload:
    return p.OrderUpdatePayload(
        order_id=change.order_id,
        symbol=change.symbol,
        reason="the rest was cancelled" if change.filled else "cancelled",
        side=change.side,
        qty=change.quantity or change.filled,
        state=change.state,
        filled_qty=change.filled,
        intent_id=str(intent.intent_id),
        attempt_id=str(change.attempt_id or ""),
        strategy_type=intent.strategy_key,
    )
