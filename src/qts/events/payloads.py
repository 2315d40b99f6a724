"""Payloads of the standard event types; numbers are finite, texts at most 1 MiB."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from qts.domain import OrderBook, Tick

PriceTick = Tick  # a tick is published as it is
OrderbookUpdate = OrderBook
Exact = Decimal | float  # a Decimal where it comes from the ledger


def as_decimal(value: Exact) -> Decimal:
    """Return the number; of a float, the decimal that it prints as."""
    return value if isinstance(value, Decimal) else Decimal(str(value))


class Payload(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Base class of payloads: frozen, and without reference cycles."""


class FillPayload(Payload, frozen=True, kw_only=True):
    """A fill; an empty `intent_id` is that of an order which no strategy placed."""

    order_id: str
    symbol: str
    filled_qty: Exact
    filled_price: Exact
    filled_time: float
    side: str = ""
    remaining_qty: Exact = 0.0  # of the order
    fee: Exact = 0.0
    trade_id: str = ""
    intent_id: str = ""
    strategy_type: str = ""


class OrderUpdatePayload(Payload, frozen=True, kw_only=True):
    order_id: str
    symbol: str
    reason: str = ""
    side: str = ""
    qty: Exact = 0.0
    price: Exact = 0.0  # the limit; 0: none
    state: str = ""  # of the attempt, or CANCELLED
    filled_qty: Exact = 0.0
    intent_id: str = ""
    attempt_id: str = ""
    strategy_type: str = ""
    is_last: bool = False  # THROTTLED, and no attempt follows


class PositionUpdate(Payload, frozen=True, kw_only=True):
    """A position after the fill `trade_id`, and what the fill added to the cash."""

    symbol: str
    qty: Exact
    average_price: Exact = 0.0
    cash_change: Exact = 0.0
    opened_at: float | None = None
    trade_id: str = ""


class Emergency(Payload, frozen=True, kw_only=True):
    reason: str
    code: str = ""


class BrokerDisconnect(Payload, frozen=True, kw_only=True):
    broker: str
    reason: str = ""


class TrailingStopHit(Payload, frozen=True, kw_only=True):
    symbol: str
    stop_price: float
    price: float
    qty: float = 0.0


class VolumeUpdate(Payload, frozen=True, kw_only=True):
    symbol: str
    volume: float
    turnover: float = 0.0


class IndexUpdate(Payload, frozen=True, kw_only=True):
    index: str
    value: float
    change: float = 0.0


class VixUpdate(Payload, frozen=True, kw_only=True):
    value: float
    change: float = 0.0


class CycleStart(Payload, frozen=True, kw_only=True):
    cycle: int
    strategy_type: str = ""


class StrategyEvaluate(Payload, frozen=True, kw_only=True):
    strategy_type: str
    symbols: tuple[str, ...] = ()
    calc_data_version: str = ""


class EvaluatePayload(Payload, frozen=True, kw_only=True):
    subject: str = ""
    reason: str = ""


class IndicatorUpdate(Payload, frozen=True, kw_only=True):
    symbol: str
    indicator: str
    value: float


class SignalPayload(Payload, frozen=True, kw_only=True):
    symbol: str
    side: str
    strategy_type: str = ""
    strength: float = 0.0
    price: float = 0.0


class StepComplete(Payload, frozen=True, kw_only=True):
    cycle: int
    symbol: str = ""
    duration_ms: float = 0.0


class OrderDecision(Payload, frozen=True, kw_only=True):
    symbol: str
    side: str
    qty: float
    price: float = 0.0
    strategy_type: str = ""


class DashboardUpdate(Payload, frozen=True, kw_only=True):
    dashboard_id: str
    update_type: str = "FULL"
    data: dict[str, Any] = {}


class LogWrite(Payload, frozen=True, kw_only=True):
    message: str
    level: str = "info"


class ReportGenerate(Payload, frozen=True, kw_only=True):
    report: str
    data: dict[str, Any] = {}


class NotificationSend(Payload, frozen=True, kw_only=True):
    text: str
    channel: str = ""
    code: str = ""


class MetricRecord(Payload, frozen=True, kw_only=True):
    name: str
    value: float


class PerfUpdate(Payload, frozen=True, kw_only=True):
    name: str
    value: float
