"""One attempt to handle an event: log context, duration, result, backoff and dead letter.

Dead letters of events consumed from NATS or Kafka are stored in PostgreSQL too, so that the
commands of `qts ops outbox` work on every bus and a requeued event goes through the relay again:

    row claimed by the relay ──┐
    row in the archive ────────┼─▶ PROCESSING ─▶ DEAD ─ operator ─▶ PENDING ─▶ relay
    no row: not published here ┘

On NATS and Kafka the envelope is the body of a message, the aggregate is in its headers.
`DeliveryRunner` handles a delivery from there:

    unpaused ─▶ attempt, with a timeout ─▶ done · retry after a backoff · dead letter stored
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, unquote
from uuid import UUID

import asyncpg
import msgspec

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import Clock, QtsError
from qts.outbox.bus import (
    SQL,
    Delivery,
    Envelope,
    EventDispatcher,
    PermanentError,
    UnknownOutcomeError,
    decode_envelope,
    stored_code,
    uuid7,
)
from qts.outbox.config import StreamConfig

# Errors of a database call that a retry may resolve.
TRANSIENT_ERRORS = (QtsError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
MAX_MESSAGE = 2000
JITTER = 0.2  # so that events that failed together are not retried together
HOLDER = "dead letters"
# Two consumers that store the same event at the same time must not insert it twice.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('qts dead letter'), hashtext($1::text))"
CANCEL_TIMEOUT_S = 1.0  # from the cancellation of a handler until it is abandoned
BACKOFF_S = (0.05, 5.0)  # between attempts to store a dead letter

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


def backoff_s(config: StreamConfig, attempt: int, chance: random.Random) -> float:
    """Return the seconds to wait after this attempt, counted from 1: exponential with jitter."""
    # The exponent is bounded too: 2**1000 does not fit a float.
    pause = min(config.backoff_base_s * 2.0 ** min(attempt - 1, 60), config.backoff_max_s)
    return pause * chance.uniform(1 - JITTER, 1 + JITTER)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set; return False when the time is over first."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


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


# Percent-encoded: NATS headers are single lines.
AGGREGATE_TYPE = "Qts-Aggregate-Type"
AGGREGATE_ID = "Qts-Aggregate-Id"
EVENT_TYPE = "Qts-Event-Type"
ACCOUNT = "Qts-Account"  # absent for an event of no account
MESSAGE_ID = "Nats-Msg-Id"  # deduplicates on NATS; informative on Kafka

_encoder = msgspec.json.Encoder()


def encode_body(delivery: Delivery) -> bytes:
    return _encoder.encode(delivery.envelope)


def encode_headers(delivery: Delivery) -> dict[str, str]:
    headers = {
        MESSAGE_ID: f"{delivery.event_id}.{delivery.row_id}",
        AGGREGATE_TYPE: quote(delivery.aggregate_type),
        AGGREGATE_ID: quote(delivery.aggregate_id),
        EVENT_TYPE: quote(delivery.envelope.type),
    }
    return headers | {ACCOUNT: quote(delivery.account)} if delivery.account else headers


def account_of(headers: Mapping[str, str]) -> str:
    """Return the account that a message belongs to; "" for none."""
    return unquote(headers.get(ACCOUNT, ""))


def partition_key(delivery: Delivery) -> bytes:
    """Return the key that all events of one aggregate share."""
    key = f"{quote(delivery.aggregate_type, safe='')}/{quote(delivery.aggregate_id)}"
    return (f"{quote(delivery.account, safe='')}/{key}" if delivery.account else key).encode()


def decode_delivery(
    stream: str, config: StreamConfig, headers: Mapping[str, str], body: bytes, attempt: int
) -> tuple[Delivery, HandlerResult | None]:
    """Decode a message; with a dead result if its envelope is invalid."""
    invalid = None
    try:
        envelope: Envelope = decode_envelope(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        invalid = HandlerResult("dead", "ENVELOPE_INVALID", str(error))
        text = body.decode(errors="replace")
        envelope = Envelope(
            event_id=_event_id(headers), type="?", trace_id="?", payload={"body": text}
        )
    aggregate_type, aggregate_id = (
        unquote(headers.get(name, "?")) for name in (AGGREGATE_TYPE, AGGREGATE_ID)
    )
    delivery = Delivery(
        stream, aggregate_type, aggregate_id, envelope, attempt, config.max_attempts
    )
    delivery.account = account_of(headers)
    return delivery, invalid


def _event_id(headers: Mapping[str, str]) -> UUID:
    try:
        return UUID(headers.get(MESSAGE_ID, "").partition(".")[0])
    except ValueError:
        return uuid7()  # not published by QTS


class DeliveryRunner:
    """Runs the handler of a delivery and stores its dead letter."""

    def __init__(
        self,
        database: Database,
        stream: str,
        config: StreamConfig,
        dispatcher: EventDispatcher,
        clock: Clock,
    ) -> None:
        self.stream = stream
        self.config = config
        self.clock = clock
        self.unpaused = asyncio.Event()  # set while the stream is not paused
        self._database = database
        self._dispatcher = dispatcher
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing

    async def follow_pause(self) -> None:
        """Poll whether the stream is paused, until cancelled."""
        while True:
            try:
                paused = await self._database.fetchval(
                    "SELECT true FROM outbox_paused WHERE stream = $1", self.stream
                )
            except TRANSIENT_ERRORS as error:
                log.warning("reading pause state failed; retrying", error=str(error))
            else:
                self.unpaused.clear() if paused else self.unpaused.set()
            await self.clock.sleep(self.config.poll_max_s)

    def decode(
        self, headers: Mapping[str, str], body: bytes, attempt: int
    ) -> tuple[Delivery, HandlerResult | None]:
        return decode_delivery(self.stream, self.config, headers, body, attempt)

    async def run(self, delivery: Delivery, known: HandlerResult | None = None) -> HandlerResult:
        """Run one attempt unless the result is known; a dead letter is stored on return."""
        if known is None and delivery.attempt > delivery.max_attempts:
            known = HandlerResult(
                "dead", "WORKER_LOST", "consumer was lost during the last attempt"
            )
            delivery.attempt = delivery.max_attempts
        result = known or await self._run_handler(delivery)
        if result.kind == "retry" and delivery.attempt >= delivery.max_attempts:
            result = msgspec.structs.replace(result, kind="dead")
        if result.kind == "dead":
            await self._store_dead_letter(delivery, result)
        count_results(self.stream, result.kind)
        return result

    def backoff_s(self, attempt: int) -> float:
        return backoff_s(self.config, attempt, self._random)

    async def _run_handler(self, delivery: Delivery) -> HandlerResult:
        timeout_ns = round(self.config.handler_timeout_s * 1e9)
        delivery.deadline_ns = self.clock.monotonic_ns() + timeout_ns
        running = asyncio.create_task(run_handler(self._dispatcher, delivery))
        try:
            while (left_ns := delivery.deadline_ns - self.clock.monotonic_ns()) > 0:
                await asyncio.wait({running}, timeout=left_ns / 1e9)
                if running.done():
                    break
        finally:
            if not running.done():
                await _cancel(running, delivery)
        if running.done() and not running.cancelled():
            return running.result()
        result = timeout_result(delivery)
        log_result(delivery, result)
        return result

    async def _store_dead_letter(self, delivery: Delivery, result: HandlerResult) -> None:
        """Retry until stored: only then is the message acknowledged."""
        delay_s, max_s = BACKOFF_S
        while True:
            try:
                await store_dead_letter(self._database, delivery, result)
            except TRANSIENT_ERRORS as error:
                log.warning("storing dead letter failed; retrying", error=str(error))
                await self.clock.sleep(delay_s)
                delay_s = min(delay_s * 2, max_s)
            else:
                return


async def _cancel(running: asyncio.Task[HandlerResult], delivery: Delivery) -> None:
    running.cancel()
    await asyncio.wait({running}, timeout=CANCEL_TIMEOUT_S)
    if not running.done():
        log.error("handler ignored cancellation; abandoned", **delivery.ids())
