"""What the owner is told: one message for each event or alert, the same on every channel.

From an event of the bus to the words the owner reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from qts.domain import Market, market_for_symbol
from qts.outbox import Delivery

SCHEMA_VERSION = 1
LONGEST_LINK = 512
LONGEST_TEXT = 400  # of a title or a body; a venue's own words may be longer

Severity = Literal["info", "warning", "critical"]
MARKS = {"info": "", "warning": "[warning] ", "critical": "[CRITICAL] "}


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As it is kept and sent; `deep_link` is a path on the dashboard, never an address."""

    schema_version: int = SCHEMA_VERSION
    event_id: UUID
    type: str
    occurred_at: datetime
    severity: Severity = "info"
    title: str
    body: str
    deep_link: str = "/"
    data: dict[str, Any] = {}

    def __post_init__(self) -> None:
        link = self.deep_link
        if not link.startswith("/") or "//" in link or "\\" in link or len(link) > LONGEST_LINK:
            raise ValueError(
                f"deep link {link[:60]!r} must be a path such as /orders/1, without // and of at "
                f"most {LONGEST_LINK} characters"
            )


def short(text: str, longest: int = LONGEST_TEXT) -> str:
    """In one line, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def as_text(messages: Sequence[Message], longest: int) -> str:
    """For channels that show plain text; several become a list, the worst first."""
    worst_first = sorted(messages, key=lambda each: -list(MARKS).index(each.severity))
    if len(messages) == 1:
        (one,) = messages
        return f"{MARKS[one.severity]}{one.title}\n{one.body}"[:longest]
    lines = [f"QTS: {len(messages)} messages"]
    room = longest - len(lines[0]) - len("\n… and 999,999 more")
    for shown, each in enumerate(worst_first):
        line = f"- {MARKS[each.severity]}{each.title}: {each.body}"
        room -= len(line) + 1
        if room < 0:
            lines.append(f"… and {len(messages) - shown:,} more")
            break
        lines.append(line)
    return "\n".join(lines)


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


def message_for_event(payload: dict[str, Any], delivery: Delivery) -> Message:
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
