"""Fixtures: an HTTP receiver, and messages to send to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from qts.database import Database
from qts.notify import Message
from qts.notify.message import Severity
from qts.outbox import uuid7
from tests.notify.receiver import Receiver


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().serving() as receiver:
        yield receiver


def a_message(title: str = "Order accepted", severity: Severity = "info", **more: Any) -> Message:
    fields: dict[str, Any] = {
        "event_id": uuid7(),
        "type": "ORDER_ACCEPTED",
        "occurred_at": datetime(2026, 1, 5, 1, tzinfo=UTC),
        "severity": severity,
        "title": title,
        "body": "strategy surge_breakout",
        "deep_link": "/orders/1",
    }
    return Message(**(fields | more))


async def state_of(database: Database, channel: str, event_id: UUID) -> tuple[str, int] | None:
    """Return state and tries of one message, or None."""
    row = await database.fetchrow(
        "SELECT state, tries FROM notification_log WHERE channel = $1 AND event_id = $2",
        channel,
        event_id,
    )
    return (row[0], row[1]) if row else None
