"""Notification messages: one per event or alert, the same on every channel, and the channel's port.

    RetryLaterError        transient (429, 5xx, no answer): retried after a pause
    MessageDeclinedError   not accepted (400, 401, 403): logged, retried rarely
    ChannelGoneError       the address no longer exists (404, 410): the channel is disabled

Errors never contain an address or a token; an address appears as its hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from qts.domain import (
    FailSafeChanged,
    KillSwitchChanged,
    OperationError,
    StrategyDisabled,
    StrategyParamsChanged,
)
from qts.outbox import Delivery

SCHEMA_VERSION = 1
MAX_LINK = 512
MAX_TEXT = 400  # of a title or a body; a venue's text may be longer

Severity = Literal["info", "warning", "critical"]
SystemEvent = FailSafeChanged | KillSwitchChanged | StrategyParamsChanged | StrategyDisabled
CHANGES: dict[type[SystemEvent], str] = {
    FailSafeChanged: "FAIL_SAFE",
    KillSwitchChanged: "KILL_SWITCH",
    StrategyParamsChanged: "STRATEGY_PARAMS",
    StrategyDisabled: "STRATEGY_DISABLED",
}
MARKS = {"info": "", "warning": "[warning] ", "critical": "[CRITICAL] "}


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Message as stored and sent; `deep_link` is a path on the dashboard, never a URL."""

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
        if not link.startswith("/") or "//" in link or "\\" in link or len(link) > MAX_LINK:
            raise ValueError(
                f"deep link {link[:60]!r} must be a path such as /orders/1, without // and of at "
                f"most {MAX_LINK} characters"
            )


def short(text: str, max_chars: int = MAX_TEXT) -> str:
    """Return the text as one line of at most `max_chars` characters."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def as_text(messages: Sequence[Message], max_chars: int) -> str:
    """Return plain text; several messages become a list, most severe first."""
    by_severity = sorted(messages, key=lambda each: -list(MARKS).index(each.severity))
    if len(messages) == 1:
        (one,) = messages
        return f"{MARKS[one.severity]}{one.title}\n{one.body}"[:max_chars]
    lines = [f"QTS: {len(messages)} messages"]
    left = max_chars - len(lines[0]) - len("\n… and 999,999 more")
    for shown, each in enumerate(by_severity):
        line = f"- {MARKS[each.severity]}{each.title}: {each.body}"
        left -= len(line) + 1
        if left < 0:
            lines.append(f"… and {len(messages) - shown:,} more")
            break
        lines.append(line)
    return "\n".join(lines)


# Severity and title by event type; {…} are fields of the payload.
_TITLES: dict[str, tuple[Severity, str]] = {
    "OrderAccepted": ("info", "Order accepted: {side} {quantity} {symbol}"),
    "OrderRejected": ("warning", "Order rejected: {side} {quantity} {symbol}"),
    "OrderThrottled": ("warning", "Order rate-limited: {side} {quantity} {symbol}"),
    "OrderUnknown": ("critical", "Order UNKNOWN: {side} {quantity} {symbol}"),
    "OrderAbsent": ("warning", "Order not at the venue: {side} {quantity} {symbol}"),
    "OrderSuspended": ("warning", "Order stopped before sending: {side} {quantity} {symbol}"),
    "FillReceived": ("info", "Filled: {side} {quantity} {symbol} at {price}"),
    "MarketSuspended": ("critical", "Market suspended: {symbol}"),
    "MarketResumed": ("info", "Market resumed: {symbol}"),
    "BacktestCompleted": ("info", "Backtest completed: job {jobId}"),
    "BacktestFailed": ("warning", "Backtest failed: job {jobId}"),
}
_DATA = {
    "strategyKey": "strategyKey",
    "symbol": "market",
    "side": "side",
    "intentType": "intentType",
    "quantity": "requestedVolume",
    "brokerOrderId": "brokerOrderId",
    "code": "code",
    "jobId": "jobId",
}
_LINK = re.compile(r"[A-Za-z0-9_-]{1,128}")


def message_for_event(payload: dict[str, Any], delivery: Delivery) -> Message:
    """Build the message of an outbox event; a missing field becomes `?` in the title."""
    envelope = delivery.envelope
    severity, title = _TITLES[envelope.type]
    return Message(
        event_id=envelope.event_id,
        type=_upper(envelope.type),
        occurred_at=envelope.occurred_at,
        severity=severity,
        title=short(title.format_map(_Fields(payload))),
        body=short(_body(payload)),
        deep_link=_link(payload),
        data=_data(payload, delivery.account),
    )


_FAIL_SAFE_SEVERITY: dict[str, Severity] = {
    "FAIL": "critical",
    "LOCKDOWN": "critical",
    "WARNING": "warning",
}


def message_for_change(payload: SystemEvent, delivery: Delivery) -> Message:
    """Build the message of a system event."""
    severity, title, body, data = _change(payload)
    return Message(
        event_id=delivery.envelope.event_id,
        type=CHANGES[type(payload)],
        occurred_at=delivery.envelope.occurred_at,
        severity=severity,
        title=short(title),
        body=short(body),
        data=data,
    )


def _change(payload: SystemEvent) -> tuple[Severity, str, str, dict[str, Any]]:
    """Return severity, title, body and data."""
    data: dict[str, Any]
    match payload:
        case FailSafeChanged(code=code, before=before, state=state):
            body, data = f"{payload.reason} (by {payload.actor})", {"code": code, "state": state}
            if before == state:
                return "info", f"Notice {code}", body, data
            severity = _FAIL_SAFE_SEVERITY.get(state, "info")
            return severity, f"Fail-safe {before} to {state}: {code}", body, data
        case KillSwitchChanged(scope=scope, trading_enabled=enabled):
            subject = "the account" if scope == "account" else f"strategy {payload.strategy_key}"
            title = f"{subject} {'may trade' if enabled else 'is STOPPED'}"
            body = f"by {payload.actor}" + (f": {payload.reason}" if payload.reason else "")
            data = {"scope": scope, "tradingEnabled": enabled}
            return "info" if enabled else "warning", title, body, data
        case StrategyParamsChanged(strategy_key=key):
            text = ", ".join(f"{name} = {value}" for name, value in payload.params.items())
            data = {"strategyKey": key, "version": payload.version}
            return "info", f"Parameters of {key} changed", f"by {payload.actor}: {text}", data
        case StrategyDisabled(strategy_key=key):
            return "critical", f"Strategy {key} disabled", payload.reason, {"strategyKey": key}


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _body(payload: dict[str, Any]) -> str:
    parts = [
        f"strategy {payload['strategyKey']}" if payload.get("strategyKey") else "",
        str(payload.get("intentType") or ""),
        f"order {payload['brokerOrderId']}" if payload.get("brokerOrderId") else "",
        " ".join(str(payload[key]) for key in ("code", "reason", "error") if payload.get(key)),
        _figures(payload.get("performance") or {}),
    ]
    return ", ".join(part for part in parts if part) or "no details"


def _figures(performance: dict[str, Any]) -> str:
    """Return the main figures of a backtest, as far as it has them."""
    names = {"trades": "{} trades", "gain": "gain {:+.2%}", "max_drawdown": "max drawdown {:.2%}"}
    given = {name: performance.get(name) for name in names}
    parts = (names[name].format(value) for name, value in given.items() if value is not None)
    return ", ".join(parts)


def _data(payload: dict[str, Any], account: str) -> dict[str, Any]:
    data = {name: str(payload[field]) for field, name in _DATA.items() if payload.get(field)}
    if "brokerOrderId" in data and account.startswith("upbit:"):
        data["upbitUuid"] = data["brokerOrderId"]
    return data


def _link(payload: dict[str, Any]) -> str:
    if "jobId" in payload:
        return "/backtests"
    intent = str(payload.get("orderIntentId") or "")
    return f"/orders/{intent}" if _LINK.fullmatch(intent) else "/orders"


def _upper(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


class RetryLaterError(OperationError):
    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s  # Retry-After of the server


class MessageDeclinedError(OperationError):
    pass


class ChannelGoneError(OperationError):
    pass


# Channels whose receivers recognise a repeated message by its `eventId`. The others get a message
# at most once if QTS ends, or loses its database, while it is sent.
DEDUPLICATING = frozenset({"webhook"})


MAX_RETRY_AFTER_S = 3600.0
_GONE = (404, 410)
_LATER = (408, 425, 429)


def check_status(status: int, retry_after_s: float, who: str) -> None:
    """Raise the channel error of an HTTP status; errors name `who`, never the address."""
    if 200 <= status < 300:
        return
    if status in _GONE:
        raise ChannelGoneError(f"{who} answered {status}: the address no longer exists")
    if status in _LATER or status >= 500:
        raise RetryLaterError(f"{who} answered {status}", retry_after_s)
    raise MessageDeclinedError(f"{who} answered {status}")


def retry_seconds(text: str) -> float:
    """Return the seconds of a Retry-After header; 0 without one that is a number."""
    return min(float(text), MAX_RETRY_AFTER_S) if text.isdigit() and text.isascii() else 0.0


class NotificationChannel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def address_hash(self) -> str:
        """Identify the address; a disabled channel is enabled again when it changes."""
        ...

    async def send(self, messages: Sequence[Message]) -> None:
        """Send all messages in one request; raise one of the errors above on failure."""
        ...


def address_hash(*parts: str) -> str:
    """Return a short hash that identifies an address in logs without revealing it."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
