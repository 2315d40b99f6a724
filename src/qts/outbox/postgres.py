"""Bus on PostgreSQL: events are rows, validated and published in the caller's transaction.

An error of PostgreSQL would abort that transaction; a refusal of the validation leaves it usable.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Self
from uuid import UUID

import asyncpg
import msgspec

from qts.database import Connection, Database, savepoint
from qts.domain import Clock, SystemClock
from qts.outbox.bus import (
    SCHEMA_VERSION,
    SQL,
    Envelope,
    EventDispatcher,
    OutboxDeadLetter,
    OutboxEvent,
    OutboxEventRefusedError,
    OutboxRow,
)
from qts.outbox.claims import process_name
from qts.outbox.config import StreamConfig, stream_config
from qts.outbox.handling import count_results
from qts.outbox.worker import OutboxWorker, WakeupNotifier

COPY_MIN_EVENTS = 50  # fewer are faster without the round trips of COPY
YIELD_EVERY = 50
_COLUMNS = (
    "event_id",
    "stream",
    "event_type",
    "aggregate_type",
    "aggregate_id",
    "account",
    "payload_json",
    "max_attempts",
)

MAX_BYTES = 1_000_000
MAX_NAME = 200
MAX_DELAY_S = 366 * 86_400.0

# Market data belongs in the event lanes and the cache: here it would delay orders.
MARKET_DATA = frozenset(
    [
        "pricetick",
        "orderbookupdate",
        "volumeupdate",
        "indexupdate",
        "vixupdate",
        "ticker",
        "tick",
        "orderbook",
        "trade",
        "quote",
        "candle",
    ]
)

_encoder = msgspec.json.Encoder()


class BornClaim(NamedTuple):
    """Claim of an event that is inserted as claimed."""

    event: OutboxEvent
    token: str
    ttl: timedelta


class PostgresBus:
    """EventBus on PostgreSQL, for one event loop."""

    def __init__(
        self, database: Database, streams: Mapping[str, StreamConfig], clock: Clock | None = None
    ) -> None:
        self._database = database
        self._streams = streams
        self._clock = clock or SystemClock()
        self._notifier = WakeupNotifier(database, self._clock)
        self._name = process_name()
        self._numbers = itertools.count(1)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, streams: Mapping[str, StreamConfig]
    ) -> AsyncIterator[Self]:
        bus = cls(database, streams)
        try:
            yield bus
        finally:
            await bus.close()

    async def close(self) -> None:
        await self._notifier.close()

    async def publish(self, tx: Connection, event: OutboxEvent) -> bool:
        row = self.row_of(event)
        notifies = self._notifier.may_notify(tx)
        xid = await tx.fetchval(SQL.publish, *row, notifies)
        if xid is not None and not notifies:
            self._notifier.published(xid, event.stream, tx)
        return xid is not None

    async def publish_many(self, tx: Connection, events: Sequence[OutboxEvent]) -> set[UUID]:
        by_id = {event.envelope.event_id: event for event in reversed(events)}
        in_order = list(reversed(by_id.values()))  # the first event with an id counts
        if not in_order:
            return set()
        has_no_delay = not any(event.delay_s for event in in_order)
        if has_no_delay and len(in_order) >= COPY_MIN_EVENTS and _in_transaction(tx):
            try:
                xid = await self._copy(tx, in_order)
            except asyncpg.UniqueViolationError:
                pass  # some ids are known: insert skips those
            else:
                for stream in {event.stream for event in in_order}:
                    self._notifier.published(xid, stream, tx)
                return set(by_id)
        return await self._insert(tx, in_order)

    def row_of(self, event: OutboxEvent) -> OutboxRow:
        *names, body, attempts = self._row(event)
        return *names, bytes(body).decode(), attempts, float(event.delay_s)

    def claim_at_birth(self, event: OutboxEvent, least_s: float) -> BornClaim:
        """Return the claim of an event that this process inserts and handles itself.

        Other workers take the event when the claim ends: after the stream's lock TTL, and not
        before `least_s`.
        """
        ttl_s = max(self._config(event.stream).lock_ttl_s, least_s)
        return BornClaim(event, f"{self._name}#{next(self._numbers)}", timedelta(seconds=ttl_s))

    async def end_claims(self, streams: Sequence[str], account: str) -> int:
        """End the claims of an account's events, whose workers act no more; return their number.

        Without it, what such a worker had claimed waits until its lock expires, and so do the later
        events of the same aggregates.
        """
        ended = await self._database.fetch(SQL.end_claims, list(streams), account)
        return len(ended)

    async def complete(self, tx: Connection, claim: BornClaim) -> bool:
        """Archive the event with the caller's transaction; return whether its claim still held."""
        event = claim.event
        row = await tx.fetchrow(
            SQL.complete_born_claimed,
            event.envelope.event_id,
            claim.token,
            event.stream,
            event.account,
            event.aggregate_type,
            event.aggregate_id,
        )
        count_results(event.stream, "done" if row else "stale")
        return row is not None

    def consumer(self, stream: str, dispatcher: EventDispatcher, account: str = "") -> OutboxWorker:
        accounts = tuple(dict.fromkeys(("", account)))
        return OutboxWorker(
            self._database, stream, self._config(stream), dispatcher, accounts=accounts
        )

    async def pause(self, stream: str) -> None:
        self._config(stream)
        await self._database.execute(SQL.pause, stream)

    async def resume(self, stream: str) -> None:
        self._config(stream)
        await self._database.execute(SQL.resume, stream)

    async def dead_letters(self, stream: str, limit: int = 100) -> list[OutboxDeadLetter]:
        self._config(stream)
        rows = await self._database.fetch(SQL.dead_letters, stream, limit)
        return [OutboxDeadLetter(*row) for row in rows]

    async def requeue(self, event_id: UUID) -> bool:
        """Queue a dead letter again unless its outcome is unknown."""
        return await self._database.fetchrow(SQL.requeue, event_id, False) is not None

    async def _copy(self, tx: Connection, events: list[OutboxEvent]) -> int:
        """Copy the ids while the events are validated; a refusal rolls both back."""
        ids = [(event.envelope.event_id,) for event in events]
        async with savepoint(tx):
            copying = asyncio.create_task(
                tx.copy_records_to_table("outbox_event_id", records=ids, columns=_COLUMNS[:1])
            )
            try:
                rows = await self._rows(events)
            except BaseException:
                await asyncio.gather(copying, return_exceptions=True)
                raise
            await copying
            await tx.copy_records_to_table("outbox_event", records=rows, columns=_COLUMNS)
            xid: int = await tx.fetchval("SELECT pg_current_xact_id()::text::bigint")
        return xid

    async def _insert(self, tx: Connection, events: list[OutboxEvent]) -> set[UUID]:
        rows = await self._rows(events)
        *columns, bodies, attempts = map(list, zip(*rows, strict=True))
        ids, streams = columns[:2]
        texts = [bytes(body).decode() for body in bodies]
        delays = [float(event.delay_s) for event in events]
        stored = await tx.fetch(SQL.publish_many, *columns, texts, attempts, delays)
        new = {row["event_id"] for row in stored}
        stream_of = dict(zip(ids, streams, strict=True))
        for stream in {stream_of[event_id] for event_id in new}:
            self._notifier.published(stored[0]["xid"], stream, tx)
        return new

    async def _rows(self, events: list[OutboxEvent]) -> list[tuple[Any, ...]]:
        """Validate and encode the events, yielding to the event loop in between."""
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(events), YIELD_EVERY):
            rows += map(self._row, events[start : start + YIELD_EVERY])
            await asyncio.sleep(0)
        return rows

    def _row(self, event: OutboxEvent) -> tuple[Any, ...]:
        body = encode_checked(event, self._streams)
        return (
            event.envelope.event_id,
            event.stream,
            event.envelope.type,
            event.aggregate_type,
            event.aggregate_id,
            event.account,
            msgspec.Raw(body),
            self._streams[event.stream].max_attempts,
        )

    def _config(self, stream: str) -> StreamConfig:
        return stream_config(self._streams, stream)


def _in_transaction(connection: Any) -> bool:
    return bool(connection.is_in_transaction())


def encode_checked(event: OutboxEvent, streams: Mapping[str, StreamConfig]) -> bytes:
    """Return the envelope as JSON; raise OutboxEventRefusedError with the reason."""
    envelope = event.envelope
    if event.stream not in streams:
        raise OutboxEventRefusedError(
            f"stream {event.stream!r} is unknown; known: {', '.join(streams)}"
        )
    if envelope.schema_version != SCHEMA_VERSION:
        raise _refused(envelope, f"schemaVersion {envelope.schema_version} is not {SCHEMA_VERSION}")
    _check_names(event)
    if _is_market_data(envelope.type):
        raise _refused(envelope, "market data is not allowed on the bus; use the event lanes")
    body = _encode(envelope)
    if len(body) > MAX_BYTES:
        raise _refused(envelope, f"{len(body):,} bytes are more than the {MAX_BYTES:,} allowed")
    # NaN and the infinities are encoded as null, and PostgreSQL stores no NUL; both are rare, so
    # only a body that may contain one is searched.
    unset = (envelope.strategy_key is None) + (envelope.market is None)
    if body.count(b"null") > unset or b"\\u0000" in body:
        _find_invalid(envelope, msgspec.to_builtins(envelope.payload), "payload")
        if b"\\u0000" in body:
            _find_invalid(envelope, msgspec.json.decode(body), "envelope")
    return body


@functools.lru_cache(maxsize=1000)
def _is_market_data(event_type: str) -> bool:
    return event_type.replace("_", "").casefold() in MARKET_DATA


def _check_names(event: OutboxEvent) -> None:
    envelope = event.envelope
    try:
        valid = (
            0 < len(envelope.type) <= MAX_NAME
            and 0 < len(event.aggregate_type) <= MAX_NAME
            and 0 < len(event.aggregate_id) <= MAX_NAME
            and 0 < len(envelope.trace_id) <= MAX_NAME
            and len(event.account) <= MAX_NAME
        )
    except TypeError:
        valid = False
    if not valid:
        raise _refused(
            envelope, f"type, aggregate and traceId need 1 to {MAX_NAME} characters each"
        )
    # They have columns; the JSON is checked as a whole.
    text = event.aggregate_type + event.aggregate_id + event.account
    if "\0" in text or (not text.isascii() and _has_surrogate(text)):
        raise _refused(envelope, "the aggregate contains a character that cannot be stored")
    if not 0 <= event.delay_s <= MAX_DELAY_S:
        raise _refused(envelope, f"delay_s {event.delay_s} is not between 0 and {MAX_DELAY_S:.0f}")
    if envelope.occurred_at.tzinfo is None:
        raise _refused(envelope, "occurredAt has no time zone")


def _encode(envelope: Envelope) -> bytes:
    try:
        if isinstance(envelope.payload, msgspec.Raw):
            # The encoder copies raw JSON unchecked: decode and encode it.
            payload = msgspec.json.decode(envelope.payload)
            envelope = msgspec.structs.replace(envelope, payload=payload)
        return _encoder.encode(envelope)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _refused(envelope, f"the payload is not JSON: {error}") from None


def _find_invalid(envelope: Envelope, value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(envelope, f"{path} is {value}, which JSON cannot represent")
    if isinstance(value, str) and "\0" in value:
        raise _refused(envelope, f"{path} contains a NUL character, which cannot be stored")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _find_invalid(envelope, key, path)
            _find_invalid(envelope, inner, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for index, inner in enumerate(value):
            _find_invalid(envelope, inner, f"{path}[{index}]")


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _refused(envelope: Envelope, reason: str) -> OutboxEventRefusedError:
    return OutboxEventRefusedError(f"event {envelope.type!r} refused: {reason}")
