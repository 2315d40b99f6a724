"""Payloads of the standard event types; numbers are finite, texts at most 1 MiB."""

from __future__ import annotations

from typing import Any

import msgspec


class Payload(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Base class of payloads: frozen, and without reference cycles."""


class FillPayload(Payload, frozen=True, kw_only=True):
    order_id: str
    symbol: str
    filled_qty: float
    filled_price: float
    filled_time: float
    side: str = ""
    remaining_qty: float = 0.0
    fee: float = 0.0


class OrderUpdatePayload(Payload, frozen=True, kw_only=True):
    order_id: str
    symbol: str
    reason: str = ""
    side: str = ""
    qty: float = 0.0
    price: float = 0.0


class PositionUpdate(Payload, frozen=True, kw_only=True):
    symbol: str
    qty: float
    average_price: float = 0.0


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


class PriceTick(Payload, frozen=True, kw_only=True):
    symbol: str
    price: float
    volume: float = 0.0
    bid: float = 0.0
    ask: float = 0.0


class OrderbookUpdate(Payload, frozen=True, kw_only=True):
    symbol: str
    bids: tuple[tuple[float, float], ...] = ()  # (price, quantity), best first
    asks: tuple[tuple[float, float], ...] = ()


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
