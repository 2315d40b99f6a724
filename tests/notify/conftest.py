"""Fixtures: an HTTP receiver, and messages to send to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

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
