"""The port: what domain code knows of the bus, whichever server carries it.

    publish ─▶ EventBus ─▶ (PostgreSQL, NATS, Kafka) ─▶ Consumer ─▶ EventDispatcher ─▶ handler

Delivery is at least once: a handler may see an event again, and must do its work only once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from qts.database import Connection
from qts.outbox.envelope import Envelope, OutboxEvent
from qts.telemetry import Ids


class Delivery(msgspec.Struct, gc=False):
    """One attempt at one event, as a handler sees it."""

    stream: str
    aggregate_type: str
    aggregate_id: str
    envelope: Envelope  # its payload is raw JSON; the handler gets it typed
    attempt: int
    max_attempts: int
    deadline_ns: int = 0  # on the monotonic clock; 0: no limit
    place: int = 0  # of its row in the outbox; a requeued event has a new one

    @property
    def event_id(self) -> UUID:
        return self.envelope.event_id

    def ids(self) -> Ids:
        """What a log line of its handler tells of it."""
        return {
            "traceId": self.envelope.trace_id,
            "eventId": str(self.envelope.event_id),
            "stream": self.stream,
            "eventType": self.envelope.type,
            "aggregateType": self.aggregate_type,
            "aggregateId": self.aggregate_id,
        }

    def extend(self, seconds: float) -> None:
        """Ask for more time than the stream allows; the lock is kept as long."""
        if self.deadline_ns:
            self.deadline_ns += round(seconds * 1e9)


class OutboxDeadLetter(msgspec.Struct, frozen=True):
    """An event that was given up, and why."""

    event_id: UUID
    stream: str
    event_type: str
    attempts: int
    error_code: str
    error_message: str
    died_at: datetime


OutboxHandler = Callable[[Any, Delivery], Awaitable[None]]


OutboxRow = tuple[Any, ...]


class EventDispatcher(Protocol):
    """Finds the handler of an event and runs it; the same one under every bus."""

    def dispatch(self, delivery: Delivery) -> Awaitable[None]:
        """Handle one event; an error says how it failed (see errors.py).

        Raised at once or when awaited: an `async def` will do.
        """
        ...


class Consumer(Protocol):
    """Takes events of one stream from the bus and has them handled."""

    async def run(self) -> None:
        """Serve until stopped; lives through the loss of its server."""
        ...

    def stop(self) -> None:
        """Take nothing more, finish what was begun, give back the rest."""
        ...


class EventBus(Protocol):
    async def publish(self, tx: Connection, event: OutboxEvent) -> bool:
        """Publish with the caller's transaction; False when this event_id was there before."""
        ...

    async def publish_many(self, tx: Connection, events: Sequence[OutboxEvent]) -> set[UUID]:
        """Publish in this order; answers the ids that were new."""
        ...

    def row_of(self, event: OutboxEvent) -> OutboxRow:
        """All but the last of what outbox_publish takes, for a statement that does more."""
        ...

    def consumer(self, stream: str, dispatcher: EventDispatcher) -> Consumer: ...

    async def pause(self, stream: str) -> None:
        """No consumer anywhere takes events of this stream until it is resumed."""
        ...

    async def resume(self, stream: str) -> None: ...

    async def dead_letters(self, stream: str, limit: int = 100) -> list[OutboxDeadLetter]:
        """The youngest first."""
        ...

    async def requeue(self, event_id: UUID) -> bool:
        """Give a dead letter new attempts, behind what waits; False when it is none."""
        ...
