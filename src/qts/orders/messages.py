"""Messages of orders on the bus: commands to the executor, and events."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import msgspec

from qts.domain import Side


class CreateOrderAttempt(msgspec.Struct, frozen=True, rename="camel"):
    order_attempt_id: UUID


class CancelOrder(msgspec.Struct, frozen=True, rename="camel"):
    order_attempt_id: UUID


class CancelStopOrder(msgspec.Struct, frozen=True, rename="camel"):
    """Cancel a stop order that waits; if it was triggered meanwhile, the order that it became."""

    stop_order_id: UUID


class Reconcile(msgspec.Struct, frozen=True):
    """Reconcile now."""


class CarryOutManually(msgspec.Struct, frozen=True, rename="camel"):
    """Carry out a manual command."""

    command_id: UUID


class RaiseCode(msgspec.Struct, frozen=True):
    """Raise a fail-safe code for something that was just committed."""

    code: str
    text: str


class AttemptEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fields of every event of an attempt."""

    order_intent_id: UUID
    order_attempt_id: UUID
    attempt_no: int
    strategy_key: str
    intent_type: str
    symbol: str
    side: Side
    quantity: Decimal
    identifier: str
    code: str = ""
    reason: str = ""


class OrderAccepted(AttemptEvent, frozen=True, kw_only=True, rename="camel"):
    broker_order_id: str


class OrderRejected(AttemptEvent, frozen=True, kw_only=True, rename="camel"):
    pass


class OrderThrottled(AttemptEvent, frozen=True, kw_only=True, rename="camel"):
    next_attempt_id: UUID | None = None


class OrderUnknown(AttemptEvent, frozen=True, kw_only=True, rename="camel"):
    pass


class OrderAbsent(AttemptEvent, frozen=True, kw_only=True, rename="camel"):
    pass


class OrderSuspended(AttemptEvent, frozen=True, kw_only=True, rename="camel"):
    pass


class FillReceived(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    trade_id: str
    broker_order_id: str
    symbol: str
    side: Side
    quantity: Decimal
    price: Decimal
    fee: Decimal
    order_attempt_id: UUID | None
    position_quantity: Decimal
    average_price: Decimal
    realised_pnl: Decimal  # of the position, before fees


class OrderClosed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The venue order is finished: FILLED or CANCELLED."""

    broker_order_id: str
    order_attempt_id: UUID
    symbol: str
    state: str
    filled: Decimal


class MarketSuspended(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    symbol: str
    code: str
    reason: str


class MarketResumed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    symbol: str
