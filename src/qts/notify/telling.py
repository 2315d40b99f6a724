"""From an event of the bus to the words the owner reads."""

from __future__ import annotations

import re
from typing import Any

from qts.domain import Market, market_for_symbol
from qts.notify.message import Message, Severity, short
from qts.outbox import Delivery

# Title by type; {…} are fields of the payload.
_WORDS: dict[str, tuple[Severity, str]] = {
    "OrderAccepted": ("info", "Order accepted: {side} {quantity} {symbol}"),
    "OrderRejected": ("warning", "Order rejected: {side} {quantity} {symbol}"),
    "OrderThrottled": ("warning", "Too many requests: {side} {quantity} {symbol}"),
    "OrderUnknown": ("critical", "Order UNKNOWN: {side} {quantity} {symbol}"),
    "OrderAbsent": ("warning", "Order never arrived: {side} {quantity} {symbol}"),
    "OrderSuspended": ("warning", "Order stopped before it left: {side} {quantity} {symbol}"),
    "FillReceived": ("info", "Filled: {side} {quantity} {symbol} at {price}"),
    "MarketSuspended": ("critical", "Market suspended: {symbol}"),
    "MarketResumed": ("info", "Market resumed: {symbol}"),
}
_DATA = {
    "strategyKey": "strategyKey",
    "symbol": "market",
    "side": "side",
    "intentType": "intentType",
    "quantity": "requestedVolume",
    "brokerOrderId": "brokerOrderId",
    "code": "code",
}
_LINK = re.compile(r"[A-Za-z0-9_-]{1,128}")


def message_of(payload: dict[str, Any], delivery: Delivery) -> Message:
    """Of a payload that lacks a field the title still is written: an alert must not get stuck."""
    envelope = delivery.envelope
    severity, form = _WORDS[envelope.type]
    return Message(
        event_id=envelope.event_id,
        type=_upper(envelope.type),
        occurred_at=envelope.occurred_at,
        severity=severity,
        title=short(form.format_map(_Fields(payload))),
        body=short(_body(payload)),
        deep_link=_link(payload),
        data=_data(payload),
    )


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _body(payload: dict[str, Any]) -> str:
    parts = [
        f"strategy {payload['strategyKey']}" if payload.get("strategyKey") else "",
        str(payload.get("intentType") or ""),
        f"order {payload['brokerOrderId']}" if payload.get("brokerOrderId") else "",
        " ".join(str(payload[key]) for key in ("code", "reason") if payload.get(key)),
    ]
    return ", ".join(part for part in parts if part) or "nothing more is known"


def _data(payload: dict[str, Any]) -> dict[str, Any]:
    data = {ours: str(payload[theirs]) for theirs, ours in _DATA.items() if payload.get(theirs)}
    if (
        "brokerOrderId" in data
        and market_for_symbol(str(payload.get("symbol", ""))) is Market.UPBIT
    ):
        data["upbitUuid"] = data["brokerOrderId"]
    return data


def _link(payload: dict[str, Any]) -> str:
    intent = str(payload.get("orderIntentId") or "")
    return f"/orders/{intent}" if _LINK.fullmatch(intent) else "/orders"


def _upper(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
