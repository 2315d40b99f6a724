"""The bus on PostgreSQL: events are rows, published by the caller's own transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self
from uuid import UUID

import asyncpg
import msgspec

from qts.database import Connection, Database, savepoint
from qts.domain import Clock, Refused, SystemClock
from qts.outbox.bus import DeadLetter, EventDispatcher
from qts.outbox.check import body_of
from qts.outbox.config import StreamConfig
from qts.outbox.envelope import Event
from qts.outbox.notifier import Notifier
from qts.outbox.queries import SQL
from qts.outbox.worker import OutboxWorker

COPY_FROM = 50  # below this many the round trips of COPY cost more than it saves
_COLUMNS = (
    "event_id",
    "stream",
    "event_type",
    "aggregate_type",
    "aggregate_id",
    "payload_json",
    "max_attempts",
)


class PostgresBus:
    """An EventBus for one event loop."""

    def __init__(
        self, database: Database, streams: Mapping[str, StreamConfig], clock: Clock | None = None
    ) -> None:
        self._database = database
        self._streams = streams
        self._clock = clock or SystemClock()
        self._notifier = Notifier(database, self._clock)

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

    async def publish(self, tx: Connection, event: Event) -> bool:
        body = body_of(event, self._streams)
        xid = await tx.fetchval(
            SQL.publish,
            event.envelope.event_id,
            event.stream,
            event.envelope.type,
            event.aggregate_type,
            event.aggregate_id,
            body.decode(),
            self._streams[event.stream].max_attempts,
            float(event.delay_s),
        )
        if xid is not None:
            self._notifier.published(xid, event.stream)
        return xid is not None

    async def publish_many(self, tx: Connection, events: Sequence[Event]) -> set[UUID]:
        rows = {event.envelope.event_id: self._row(event) for event in reversed(events)}
        in_order = list(reversed(rows.values()))  # of one id given twice, the first counts
        if not in_order:
            return set()
        delays = {event.envelope.event_id: event.delay_s for event in events if event.delay_s}
        if len(in_order) >= COPY_FROM and not delays and _in_transaction(tx):
            try:
                xid = await self._copy(tx, in_order)
            except asyncpg.UniqueViolationError:
                pass  # some are known: the slower way sorts them out
            else:
                for stream in {event.stream for event in events}:
                    self._notifier.published(xid, stream)
                return set(rows)
        return await self._insert(tx, in_order, delays)

    def consumer(self, stream: str, dispatcher: EventDispatcher) -> OutboxWorker:
        return OutboxWorker(self._database, stream, self._config(stream), dispatcher)

    async def pause(self, stream: str) -> None:
        self._config(stream)
        await self._database.execute(SQL.pause, stream)

    async def resume(self, stream: str) -> None:
        self._config(stream)
        await self._database.execute(SQL.resume, stream)

    async def dead_letters(self, stream: str, limit: int = 100) -> list[DeadLetter]:
        self._config(stream)
        rows = await self._database.fetch(SQL.dead_letters, stream, limit)
        return [DeadLetter(*row) for row in rows]

    async def requeue(self, event_id: UUID) -> bool:
        """Never an event whose outcome is not known: that needs someone who looked."""
        return await self._database.fetchrow(SQL.requeue, event_id, False) is not None

    async def _copy(self, tx: Connection, rows: list[tuple[Any, ...]]) -> int:
        async with savepoint(tx):
            await tx.copy_records_to_table(
                "outbox_event_id", records=[row[:1] for row in rows], columns=_COLUMNS[:1]
            )
            await tx.copy_records_to_table("outbox_event", records=rows, columns=_COLUMNS)
            xid: int = await tx.fetchval("SELECT pg_current_xact_id()::text::bigint")
        return xid

    async def _insert(
        self, tx: Connection, rows: list[tuple[Any, ...]], delays: Mapping[UUID, float]
    ) -> set[UUID]:
        ids, streams, types, kinds, keys, bodies, attempts = map(list, zip(*rows, strict=True))
        texts = [bytes(body).decode() for body in bodies]
        waits = [float(delays.get(event_id, 0.0)) for event_id in ids]
        stored = await tx.fetch(
            SQL.publish_many, ids, streams, types, kinds, keys, texts, attempts, waits
        )
        new = {row["event_id"] for row in stored}
        stream_of = dict(zip(ids, streams, strict=True))
        for stream in {stream_of[event_id] for event_id in new}:
            self._notifier.published(stored[0]["xid"], stream)
        return new

    def _row(self, event: Event) -> tuple[Any, ...]:
        body = body_of(event, self._streams)
        return (
            event.envelope.event_id,
            event.stream,
            event.envelope.type,
            event.aggregate_type,
            event.aggregate_id,
            msgspec.Raw(body),
            self._streams[event.stream].max_attempts,
        )

    def _config(self, stream: str) -> StreamConfig:
        if stream not in self._streams:
            raise Refused(f"stream {stream!r} is unknown; known: {', '.join(self._streams)}")
        return self._streams[stream]


def _in_transaction(connection: Any) -> bool:
    return bool(connection.is_in_transaction())
