"""Helpers of the outbox tests: a payload, streams with short timeouts, running consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from qts.database import Database
from qts.outbox import (
    SYSTEM_EVENT,
    TRADE_COMMAND,
    TRADE_EVENT,
    Consumer,
    EventDispatcher,
    OutboxEvent,
    PostgresBus,
    StreamConfig,
)

QUICK: dict[str, Any] = {
    "lock_ttl_s": 1.0,
    "handler_timeout_s": 5.0,
    "backoff_base_s": 0.02,
    "backoff_max_s": 0.05,
    "poll_max_s": 0.2,
}
STREAMS = {
    TRADE_COMMAND: StreamConfig(ordered=True, **QUICK),
    TRADE_EVENT: StreamConfig(max_attempts=3, **QUICK),
    SYSTEM_EVENT: StreamConfig(max_attempts=3, batch=10, **QUICK),
}


class OrderAccepted(msgspec.Struct):
    """Example payload."""

    order: str
    number: int = 0


def accepted(
    order: str = "1", number: int = 0, *, stream: str = TRADE_EVENT, **more: Any
) -> OutboxEvent:
    return OutboxEvent.of(stream, OrderAccepted(order, number), ("Order", order), **more)


async def publish(database: Database, bus: PostgresBus, *events: OutboxEvent) -> None:
    async with database.transaction() as tx:
        await bus.publish_many(tx, events)


@asynccontextmanager
async def running(*consumers: Consumer) -> AsyncIterator[None]:
    """Serve during the block, then stop as SIGTERM would."""
    tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)


async def until(fact: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    """Wait until the condition, set by another process or connection, is true."""
    async with asyncio.timeout(timeout_s):
        while not await fact():  # noqa: ASYNC110 - the server gives no event for it
            await asyncio.sleep(0.01)


async def statuses(database: Database) -> dict[str, int]:
    rows = await database.fetch("SELECT status, count(*) FROM outbox_event_all GROUP BY status")
    return {row["status"]: row["count"] for row in rows}


async def until_statuses(
    database: Database, expected: dict[str, int], timeout_s: float = 60
) -> None:
    async def are() -> bool:
        return await statuses(database) == expected

    try:
        await until(are, timeout_s)
    except TimeoutError:
        raise AssertionError(f"expected {expected}, found {await statuses(database)}") from None


class Recorder:
    """Dispatcher that records deliveries and then runs a callback."""

    def __init__(self, then: Callable[[Any], Awaitable[None]] | None = None) -> None:
        self.seen: list[Any] = []
        self._then = then

    async def dispatch(self, delivery: Any) -> None:
        self.seen.append(delivery)
        if self._then is not None:
            await self._then(delivery)


def as_dispatcher(recorder: Recorder) -> EventDispatcher:
    return recorder
