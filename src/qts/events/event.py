"""Event and its priority."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec


class Priority(IntEnum):
    P0 = 0  # orders, fills, emergencies: never lost, served first
    P1 = 1  # prices and order books
    P2 = 2  # strategies and signals
    P3 = 3  # dashboard, logs, reports


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event; `EventType.event` fills in the fields that depend on the type."""

    event_id: str
    event_type: str
    priority: int
    timestamp: float  # seconds since 1970, UTC
    source: str
    payload: Any  # an instance of the payload class of the type
    requires_ack: bool = False
    max_process_time_ms: float | None = None
    can_batch: bool = False
    can_collapse: bool = False
    can_drop: bool = False
    retry_count: int = 0
    max_retries: int = 3
