"""Envelope of a bus message and the outbox event that carries it."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

import msgspec

from qts import telemetry

SCHEMA_VERSION = 1
DEFAULT_OWNER = "OWNER"


def uuid7() -> UUID:
    """Return an id that grows with time (RFC 9562), so that new rows extend an index at its end."""
    random = int.from_bytes(os.urandom(10))
    return UUID(
        int=(time.time_ns() // 1_000_000) << 80
        | 7 << 76
        | (random >> 68) << 64
        | 2 << 62
        | random & (1 << 62) - 1
    )


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Fields common to all messages, stored as one JSON document."""

    schema_version: int = SCHEMA_VERSION
    event_id: UUID = msgspec.field(default_factory=uuid7)
    type: str
    occurred_at: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    trace_id: str
    owner_id: str = DEFAULT_OWNER
    strategy_key: str | None = None
    market: str | None = None
    payload: Any


class _RawEnvelope(Envelope, frozen=True, kw_only=True, rename="camel", gc=False):
    payload: msgspec.Raw


decode_envelope = msgspec.json.Decoder(_RawEnvelope).decode  # leaves the payload as JSON


class OutboxEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Envelope with its stream and the aggregate within which order is kept.

    Only consumers of its `account` take it; with "" any consumer may.
    """

    stream: str
    aggregate_type: str
    aggregate_id: str
    envelope: Envelope
    delay_s: float = 0.0
    account: str = ""

    @classmethod
    def of(cls, stream: str, payload: Any, aggregate: tuple[str, str], **more: Any) -> Self:
        """Build the event of a payload in the current trace.

        Its type is the payload's class name unless `type` is given; `delay_s`, `account` and the
        other fields of the envelope are accepted too.
        """
        delay_s, account = more.pop("delay_s", 0.0), more.pop("account", "")
        more.setdefault("type", type(payload).__name__)
        if "trace_id" not in more:
            more["trace_id"] = (
                telemetry.current_context().get("traceId") or telemetry.new_trace_id()
            )
        return cls(
            stream=stream,
            aggregate_type=aggregate[0],
            aggregate_id=aggregate[1],
            envelope=Envelope(payload=payload, **more),
            delay_s=delay_s,
            account=str(account),
        )
