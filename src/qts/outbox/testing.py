"""Support for tests of handlers: run due events, record what was published, inject failures.

async with PostgresBus.open(database, streams) as bus:
    recorded = RecordingBus(bus)
    ...
    handled = await run_due(database, "everbit.trade.command", config, dispatcher)
    assert [one.result for one in handled] == ["done"]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

import msgspec

from qts.database import Connection, Database
from qts.outbox.bus import (
    Consumer,
    Delivery,
    EventBus,
    EventDispatcher,
    OutboxDeadLetter,
    OutboxEvent,
    OutboxRow,
)
from qts.outbox.claims import ClaimedEvent, Claims
from qts.outbox.config import StreamConfig
from qts.outbox.handling import run_handler

BATCH = 100


class HandledEvent(msgspec.Struct, frozen=True):
    """Event that was attempted, with its result."""

    delivery: Delivery
    result: str
    code: str = ""
    message: str = ""


async def run_due(
    database: Database,
    stream: str,
    config: StreamConfig,
    dispatcher: EventDispatcher,
    account: str = "",
) -> list[HandledEvent]:
    """Handle all due events of the account one by one, and those that they publish.

    A failed event waits at least a minute for its retry, so that it is not returned again.
    """
    claims = Claims(stream, config, "run_due", ("", account))
    limit = 1 if config.ordered else BATCH  # a failure delays those behind it
    handled: list[HandledEvent] = []
    async with database.connection() as connection:
        while claimed := await claims.claim(connection, limit, time.monotonic_ns()):
            handled += [await _handle(connection, claims, dispatcher, one) for one in claimed]
    return handled


async def make_due(database: Database, stream: str) -> None:
    """Make failed and delayed events due now."""
    await database.execute(
        "UPDATE outbox_event SET next_retry_at = clock_timestamp() "
        "WHERE stream = $1 AND status = 'PENDING'",
        stream,
    )


class RecordingBus:
    """Bus that records what is published through it, committed or not."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.published: list[OutboxEvent] = []

    def of_type(self, name: str) -> list[OutboxEvent]:
        return [event for event in self.published if event.envelope.type == name]

    async def publish(self, tx: Connection, event: OutboxEvent) -> bool:
        new = await self._bus.publish(tx, event)
        if new:
            self.published.append(event)
        return new

    async def publish_many(self, tx: Connection, events: Sequence[OutboxEvent]) -> set[UUID]:
        new = await self._bus.publish_many(tx, events)
        self.published += [event for event in events if event.envelope.event_id in new]
        return new

    def row_of(self, event: OutboxEvent) -> OutboxRow:
        row = self._bus.row_of(event)
        self.published.append(event)
        return row

    def consumer(self, stream: str, dispatcher: EventDispatcher, account: str = "") -> Consumer:
        return self._bus.consumer(stream, dispatcher, account)

    async def pause(self, stream: str) -> None:
        await self._bus.pause(stream)

    async def resume(self, stream: str) -> None:
        await self._bus.resume(stream)

    async def dead_letters(self, stream: str, limit: int = 100) -> list[OutboxDeadLetter]:
        return await self._bus.dead_letters(stream, limit)

    async def requeue(self, event_id: UUID) -> bool:
        return await self._bus.requeue(event_id)


class FailFirst:
    """Dispatcher whose first attempts fail with the given error."""

    def __init__(self, dispatcher: EventDispatcher, error: Exception, times: int = 1) -> None:
        self._dispatcher = dispatcher
        self._error = error
        self.left = times

    async def dispatch(self, delivery: Delivery) -> None:
        if self.left > 0:
            self.left -= 1
            raise self._error
        await self._dispatcher.dispatch(delivery)


async def _handle(
    connection: Connection, claims: Claims, dispatcher: EventDispatcher, claimed: ClaimedEvent
) -> HandledEvent:
    result = claimed.invalid or await run_handler(dispatcher, claimed.delivery)
    if result.kind == "done":
        await claims.complete(connection, [claimed])
    else:
        await claims.fail(connection, [(claimed, result, 60.0)])
    return HandledEvent(claimed.delivery, result.kind, result.code, result.message)
