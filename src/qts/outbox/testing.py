"""For tests of strategies and handlers: run what is due, see what was published, fail on purpose.

async with PostgresBus.open(database, streams) as bus:
    captured = CapturingBus(bus)
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
    OutboxRow,
)
from qts.outbox.claims import ClaimedEvent, Claims
from qts.outbox.config import StreamConfig
from qts.outbox.envelope import OutboxEvent
from qts.outbox.handling import run_handler

AT_ONCE = 100


class HandledEvent(msgspec.Struct, frozen=True):
    """An event that was tried, and how it ended."""

    delivery: Delivery
    result: str
    code: str = ""
    message: str = ""


async def run_due(
    database: Database, stream: str, config: StreamConfig, dispatcher: EventDispatcher
) -> list[HandledEvent]:
    """Handle all events that are due, one by one, here and now, and what they publish too.

    A failed event waits at least a minute for its next attempt, so that it is not seen again.
    """
    claims = Claims(stream, config, name="run_due")
    at_once = 1 if config.ordered else AT_ONCE  # a failure holds up those behind it
    handled: list[HandledEvent] = []
    async with database.connection() as connection:
        while claimed := await claims.claim(connection, at_once, time.monotonic_ns()):
            handled += [await _handle(connection, claims, dispatcher, one) for one in claimed]
    return handled


async def make_due(database: Database, stream: str) -> None:
    """Let the pauses of failed and delayed events be over."""
    await database.execute(
        "UPDATE outbox_event SET next_retry_at = clock_timestamp() "
        "WHERE stream = $1 AND status = 'PENDING'",
        stream,
    )


class RecordingBus:
    """Publishes through another bus and remembers what it was given, committed or not."""

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

    def consumer(self, stream: str, dispatcher: EventDispatcher) -> Consumer:
        return self._bus.consumer(stream, dispatcher)

    async def pause(self, stream: str) -> None:
        await self._bus.pause(stream)

    async def resume(self, stream: str) -> None:
        await self._bus.resume(stream)

    async def dead_letters(self, stream: str, limit: int = 100) -> list[OutboxDeadLetter]:
        return await self._bus.dead_letters(stream, limit)

    async def requeue(self, event_id: UUID) -> bool:
        return await self._bus.requeue(event_id)


class FailFirst:
    """A dispatcher whose first attempts fail with the error given; then it lets all through."""

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
    outcome = claimed.broken or await run_handler(dispatcher, claimed.delivery)
    if outcome.result == "done":
        await claims.complete(connection, [claimed])
    else:
        await claims.fail(connection, [(claimed, outcome, 60.0)])
    return HandledEvent(claimed.delivery, outcome.result, outcome.code, outcome.message)
