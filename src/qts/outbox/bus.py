"""Port of the durable bus, the same for PostgreSQL, NATS and Kafka: events, handlers, errors.

    publish ─▶ EventBus ─▶ (PostgreSQL, NATS, Kafka) ─▶ Consumer ─▶ EventDispatcher ─▶ handler

Delivery is at least once: a handler may receive an event again and must be idempotent. By the error
that it raises, a handler says what becomes of its event:

    RetryableError       transient (network, 5xx, timeout): retried after a backoff
    PermanentError       a retry cannot help (invalid data, policy): a dead letter at once
    UnknownOutcomeError  the effect may have happened: a dead letter at once, requeued only after
                         an operator has checked the outcome

Any other error counts as retryable: handlers are idempotent, and attempts are limited.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import load_queries
from qts.domain import OperationError, QtsError, RefusedError
from qts.telemetry import Ids

if TYPE_CHECKING:
    from qts.database import Connection

SQL = load_queries("qts.outbox")  # the statements of this package

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

H = TypeVar("H", bound=OutboxHandler)


class EventDispatcher(Protocol):
    """Finds the handler of an event and runs it."""

    def dispatch(self, delivery: Delivery) -> Awaitable[None]:
        """Handle one event; errors, raised at once or when awaited, are those of a handler."""
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


class RetryableError(OperationError):
    code = "RETRYABLE"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code


class PermanentError(OperationError):
    code = "PERMANENT"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code


class UnknownOutcomeError(OperationError):
    code = "UNKNOWN"


class OutboxEventRefusedError(RefusedError):
    """Event that cannot be published as given; the caller's transaction stays usable."""


# Code stored in `last_error_code` for an error of ours; rows and alerts depend on the spelling.
STORED_CODES = {
    "RefusedError": "Refused",
    "EventRefusedError": "EventRefused",
    "HomeInUseError": "HomeInUse",
    "SchemaTooNewError": "SchemaTooNew",
    "OperationError": "Failed",
    "LaneFullError": "LaneFull",
    "ServerFailedError": "ServerFailed",
    "UnreachableError": "Unreachable",
    "OutcomeUnknownError": "OutcomeUnknown",
    "RemoteHandlerError": "Told",
    "RetryLaterError": "Later",
    "MessageDeclinedError": "Declined",
    "ChannelGoneError": "Gone",
    "OutboxEventRefusedError": "EventRefused",
    "StepFailedError": "StepFailed",
    "RateLimitedError": "Throttled",
    "VenueRejectedError": "Rejected",
    "NotSupportedError": "NotOffered",
    "VenueBlockedError": "Blocked",
    "AccountTakenError": "AccountTaken",
    "FencedOutError": "TakenOver",
    "CircuitOpenError": "CircuitOpen",
    "StoreBusyError": "Busy",
    "ForbiddenError": "Forbidden",
    "RetryableError": RetryableError.code,
    "PermanentError": PermanentError.code,
    "UnknownOutcomeError": UnknownOutcomeError.code,
}


def stored_code(error: Exception) -> str:
    """Return the code to store for an error: its own, the table's, or its class name."""
    if isinstance(error, RetryableError | PermanentError | UnknownOutcomeError):
        return error.code
    name = type(error).__name__
    return STORED_CODES.get(name, name) if isinstance(error, QtsError) else name


class Dispatcher:
    """EventDispatcher with registered handlers.

    >>> @dispatcher.on("everbit.trade.event", OrderAccepted)
    ... async def push(payload: OrderAccepted, delivery: Delivery) -> None: ...
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], tuple[OutboxHandler, msgspec.json.Decoder[Any]]] = {}
        self._ignored: set[tuple[str, str | None]] = set()

    def on(
        self,
        stream: str,
        payload_type: Any,
        type: str | None = None,  # noqa: A002 - as in the envelope
    ) -> Callable[[H], H]:
        """Register the decorated handler; the event type is the payload's class name by default."""

        def register(handler: H) -> H:
            name = type or payload_type.__name__
            if not _is_async(handler):
                raise RefusedError(
                    f"handler of {name} is not an async function; "
                    "await asyncio.to_thread(...) in it for blocking calls"
                )
            if (stream, name) in self._handlers:
                raise RefusedError(f"{name} on {stream} already has a handler")
            self._handlers[stream, name] = (handler, msgspec.json.Decoder(payload_type))
            return handler

        return register

    def ignore(self, stream: str, *types: str) -> None:
        """Accept these event types without a handler; without names, all types."""
        self._ignored.update((stream, name) for name in types or (None,))

    def dispatch(self, delivery: Delivery) -> Awaitable[None]:
        stream, name = delivery.stream, delivery.envelope.type
        found = self._handlers.get((stream, name))
        if found is None:
            if self._ignored.isdisjoint(((stream, name), (stream, None))):
                raise PermanentError(f"no handler for {name} on {stream}", code="NO_HANDLER")
            return _pass()
        handler, decoder = found
        try:
            payload = decoder.decode(delivery.envelope.payload)
        except msgspec.MsgspecError as error:
            raise PermanentError(f"payload of {name}: {error}", code="PAYLOAD_INVALID") from None
        return handler(payload, delivery)


async def _pass() -> None:
    """Complete an ignored event."""


def _is_async(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler)


async def mark_handled(tx: Connection, event_id: UUID, handler: str = "") -> bool:
    """Record that the event is handled; return False if it already was.

    Call it in the transaction of the effect, and skip the effect on False. A concurrent call waits
    for that transaction to end. Several handlers of one event need different names.
    """
    return await tx.execute(SQL.mark_handled, handler, event_id) == "INSERT 0 1"
