"""One attempt to handle an event: log context, duration, result, backoff and dead letter.

Dead letters of events consumed from NATS or Kafka are stored in PostgreSQL too, so that the
commands of `qts ops outbox` work on every bus and a requeued event goes through the relay again:

    row claimed by the relay ──┐
    row in the archive ────────┼─▶ PROCESSING ─▶ DEAD ─ operator ─▶ PENDING ─▶ relay
    no row: not published here ┘
"""

from __future__ import annotations

import random
import time
from typing import Any, Literal

import msgspec

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import QtsError
from qts.outbox.bus import Delivery, EventDispatcher
from qts.outbox.config import StreamConfig
from qts.outbox.errors import PermanentError, UnknownOutcomeError, stored_code
from qts.outbox.queries import SQL

MAX_MESSAGE = 2000

log = telemetry.logger("outbox")

_processed = telemetry.counter(
    "everbit_outbox_processed_total", "Attempts that ended.", ("stream", "result")
)
_duration = telemetry.histogram(
    "everbit_outbox_handler_duration_seconds",
    "Time in the handler.",
    ("stream", "eventType"),
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
_timers: dict[tuple[str, str], Any] = {}


class HandlerResult(msgspec.Struct, frozen=True):
    """Result of an attempt, with the error if it failed."""

    kind: Literal["done", "retry", "dead"]
    code: str = ""
    message: str = ""


DONE = HandlerResult("done")


def timeout_result(delivery: Delivery) -> HandlerResult:
    return HandlerResult("retry", "TIMEOUT", f"{delivery.envelope.type} exceeded its timeout")


async def run_handler(dispatcher: EventDispatcher, delivery: Delivery) -> HandlerResult:
    """Run the handler and return its result; only a cancellation is raised."""
    began_s = time.perf_counter()
    with telemetry.lazy_context(delivery.ids):
        try:
            if telemetry.tracing():
                await _traced(dispatcher, delivery)
            else:
                await dispatcher.dispatch(delivery)
            result = DONE
        except Exception as error:  # noqa: BLE001 - any error of a handler is a result
            result = classify_error(error)
            log_result(delivery, result)
    took_s = time.perf_counter() - began_s
    key = (delivery.stream, delivery.envelope.type)
    (_timers.get(key) or _timer(key)).observe(took_s)
    return result


async def _traced(dispatcher: EventDispatcher, delivery: Delivery) -> None:
    with telemetry.span("outbox.handle", attempt=delivery.attempt):
        await dispatcher.dispatch(delivery)


def classify_error(error: Exception) -> HandlerResult:
    """Return the result of an attempt that raised this error."""
    final = isinstance(error, PermanentError | UnknownOutcomeError)
    return HandlerResult("dead" if final else "retry", _clean(stored_code(error)), _text(error))


def log_result(delivery: Delivery, result: HandlerResult) -> None:
    """Log a failure with the ids of its event, also outside of the handler's context."""
    with telemetry.lazy_context(delivery.ids):
        if result.kind == "dead" or delivery.attempt >= delivery.max_attempts:
            log.error("event failed; dead letter", code=result.code, error=result.message)
        else:
            log.warning(
                "event failed; retrying",
                code=result.code,
                error=result.message,
                attempt=delivery.attempt,
            )


def count_results(stream: str, result: str, events: int = 1) -> None:
    """Add to the processed counter in bulk: one by one costs as much as the event."""
    if events:
        _processed.labels(stream, result).inc(events)


def _timer(key: tuple[str, str]) -> Any:
    """Return the histogram of a stream and type, cached: finding it takes a lock."""
    return _timers.setdefault(key, _duration.labels(*key))


def _text(error: Exception) -> str:
    # A NUL cannot be stored, and an error text may contain secrets of a URL or a header.
    kind = "" if isinstance(error, QtsError) else f"{type(error).__name__}: "
    return _clean(telemetry.redact_text(kind + str(error)))


def _clean(text: str) -> str:
    text = text.replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_MESSAGE]


JITTER = 0.2  # so that events that failed together are not retried together


def backoff_s(config: StreamConfig, attempt: int, chance: random.Random) -> float:
    """Return the seconds to wait after this attempt, counted from 1: exponential with jitter."""
    # The exponent is bounded too: 2**1000 does not fit a float.
    pause = min(config.backoff_base_s * 2.0 ** min(attempt - 1, 60), config.backoff_max_s)
    return pause * chance.uniform(1 - JITTER, 1 + JITTER)


HOLDER = "dead letters"
# Two consumers that store the same event at the same time must not insert it twice.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('qts dead letter'), hashtext($1::text))"


async def store_dead_letter(database: Database, delivery: Delivery, result: HandlerResult) -> None:
    """Store the event as DEAD; an existing dead letter is left unchanged."""
    async with database.transaction() as tx:
        await tx.execute(_LOCK, str(delivery.event_id))
        row_id = await _row_id(tx, delivery)
        await tx.execute(SQL.lock_for_dead, row_id, HOLDER)
        await tx.execute(SQL.mark_dead, row_id, delivery.attempt, result.code, result.message)


async def _row_id(tx: Connection, delivery: Delivery) -> int:
    # In this order: rows move from the table to the archive; only this function moves them back.
    for query in (SQL.find_live_row, SQL.find_archived_row):
        found: int | None = await tx.fetchval(query, delivery.event_id)
        if found is not None:
            return found
    row_id: int = await tx.fetchval(
        SQL.insert_unpublished,
        delivery.event_id,
        delivery.stream,
        delivery.envelope.type,
        delivery.aggregate_type,
        delivery.aggregate_id,
        delivery.account,
        msgspec.json.encode(delivery.envelope).decode().replace("\\u0000", "?"),
    )
    return row_id
