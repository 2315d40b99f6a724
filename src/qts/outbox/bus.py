"""Port of the durable bus, the same for PostgreSQL, NATS and Kafka.

    publish ─▶ EventBus ─▶ (PostgreSQL, NATS, Kafka) ─▶ Consumer ─▶ EventDispatcher ─▶ handler

Delivery is at least once: a handler may receive an event again and must be idempotent.
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
    """One attempt to handle an outbox event."""

    stream: str
    aggregate_type: str
    aggregate_id: str
    envelope: Envelope  # with the payload as raw JSON; the handler receives it decoded
    attempt: int
    max_attempts: int
    deadline_ns: int = 0  # on the monotonic clock; 0: none
    row_id: int = 0  # in the outbox; a requeued event has a new one
    account: str = ""  # that the event belongs to; "": none

    @property
    def event_id(self) -> UUID:
        return self.envelope.event_id

    def ids(self) -> Ids:
        """Return the fields that identify the event in log lines."""
        return {
            "traceId": self.envelope.trace_id,
            "eventId": str(self.envelope.event_id),
            "stream": self.stream,
            "eventType": self.envelope.type,
            "aggregateType": self.aggregate_type,
            "aggregateId": self.aggregate_id,
        }

    def extend(self, seconds: float) -> None:
        """Move the deadline; the lock is extended for as long."""
        if self.deadline_ns:
            self.deadline_ns += round(seconds * 1e9)


class OutboxDeadLetter(msgspec.Struct, frozen=True):
    """Event that has used up its retries, with the last error."""

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
    """Finds the handler of an event and runs it."""

    def dispatch(self, delivery: Delivery) -> Awaitable[None]:
        """Handle one event; errors, raised at once or when awaited, are those of errors.py."""
        ...


class Consumer(Protocol):
    """Takes events of one stream from the bus and dispatches them."""

    async def run(self) -> None:
        """Run until stopped; reconnects when the server is lost."""
        ...

    def stop(self) -> None:
        """Claim no more, finish running handlers, release the rest."""
        ...


class EventBus(Protocol):
    async def publish(self, tx: Connection, event: OutboxEvent) -> bool:
        """Publish with the caller's transaction; return False if the event_id is known."""
        ...

    async def publish_many(self, tx: Connection, events: Sequence[OutboxEvent]) -> set[UUID]:
        """Publish in this order and return the ids that were new."""
        ...

    def row_of(self, event: OutboxEvent) -> OutboxRow:
        """Return the arguments of outbox_publish except the last, for a combined statement."""
        ...

    def consumer(self, stream: str, dispatcher: EventDispatcher, account: str = "") -> Consumer:
        """Return a consumer of the events of this account, and of those that have none."""
        ...

    async def pause(self, stream: str) -> None:
        """Stop all consumers from taking events of this stream until it is resumed."""
        ...

    async def resume(self, stream: str) -> None: ...

    async def dead_letters(self, stream: str, limit: int = 100) -> list[OutboxDeadLetter]:
        """List dead letters, newest first."""
        ...

    async def requeue(self, event_id: UUID) -> bool:
        """Queue a dead letter again, last; return False if it is not requeued."""
        ...
