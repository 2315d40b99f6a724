"""Manual inspection and repair of the outbox, and its upkeep: gauges and daily partitions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, RefusedError, SystemClock
from qts.outbox.bus import SQL, Envelope, OutboxEvent
from qts.outbox.config import OutboxConfig, StreamConfig, stream_config
from qts.outbox.handling import TRANSIENT_ERRORS
from qts.outbox.postgres import encode_checked

TAIL_INTERVAL_S = 0.5
TAIL_LIMIT = 1000

DAYS_AHEAD = 7
GAUGE_INTERVAL_S = 5.0

Status = Literal["PENDING", "PROCESSING", "DONE", "DEAD"]

log = telemetry.logger("outbox")


class EventRow(msgspec.Struct, frozen=True):
    """Outbox event with all of its columns."""

    id: int
    event_id: UUID
    stream: str
    event_type: str
    aggregate_type: str
    aggregate_id: str
    payload_json: dict[str, Any]
    status: Status
    attempt_count: int
    max_attempts: int
    next_retry_at: datetime
    last_attempt_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    last_error_code: str | None
    last_error_message: str | None
    created_at: datetime
    updated_at: datetime
    processed_at: datetime | None
    account: str = ""  # "": of none


class OutboxAdmin:
    """Commands of the operator on outbox events; none of them runs by itself."""

    def __init__(
        self, database: Database, streams: Mapping[str, StreamConfig] | None = None
    ) -> None:
        self._database = database
        self._streams = streams or OutboxConfig().streams

    async def find(
        self,
        *,
        stream: str | None = None,
        status: str | None = None,
        event_type: str | None = None,
        aggregate_id: str | None = None,
        limit: int = 50,
    ) -> list[EventRow]:
        """List matching events, newest first."""
        rows = await self._database.fetch(SQL.list, stream, status, event_type, aggregate_id, limit)
        return [EventRow(*row) for row in rows]

    async def show(self, event_id: UUID) -> EventRow:
        row = await self._database.fetchrow(SQL.show, event_id)
        if row is None:
            raise RefusedError(f"event {event_id} is not in the outbox")
        return EventRow(*row)

    async def requeue(self, event_id: UUID, *, outcome_checked: bool = False) -> EventRow:
        """Give a dead letter new attempts; an unknown outcome must have been checked first."""
        before = await self._dead_letter(event_id)
        if before.last_error_code == "UNKNOWN" and not outcome_checked:
            raise RefusedError(
                f"event {event_id} may have taken effect; check, and requeue it with "
                "--outcome-checked if it did not"
            )
        await self._database.fetchrow(SQL.requeue, event_id, outcome_checked)
        return await self.show(event_id)

    async def requeue_all(self, stream: str) -> int:
        """Requeue all dead letters of a stream except those with an unknown outcome."""
        stream_config(self._streams, stream)
        count: int = await self._database.fetchval(SQL.requeue_all, stream, False)
        return count

    async def edit(self, event_id: UUID, payload: Any) -> EventRow:
        """Replace the payload of a dead letter, validated as at publishing."""
        row = await self._dead_letter(event_id)
        envelope = msgspec.convert({**row.payload_json, "payload": payload}, Envelope)
        event = OutboxEvent(
            stream=row.stream,
            aggregate_type=row.aggregate_type,
            aggregate_id=row.aggregate_id,
            envelope=envelope,
        )
        body = encode_checked(event, self._streams)
        await self._database.execute(SQL.replace_payload, event_id, body.decode())
        return await self.show(event_id)

    async def purge_dead(self, older_than_s: float, stream: str | None = None) -> int:
        """Delete old dead letters and return their number; their ids stay known."""
        status = await self._database.execute(SQL.purge_dead, stream, float(older_than_s))
        return int(status.rpartition(" ")[2])

    async def purge_done(self, keep_days: int) -> list[str]:
        """Drop archive partitions older than `keep_days` and return their names."""
        return await rotate_partitions(self._database, keep_days)

    async def tail(
        self, stream: str | None = None, since: datetime | None = None, clock: Clock | None = None
    ) -> AsyncGenerator[EventRow, None]:
        """Yield events as they are published or change, without end."""
        clock = clock or SystemClock()
        last = since or await self._database.fetchval("SELECT clock_timestamp()")
        while True:
            rows = await self._database.fetch(SQL.events_since, last, stream, TAIL_LIMIT)
            for row in rows:
                event = EventRow(*row)
                last = max(last, event.updated_at)
                yield event
            if len(rows) < TAIL_LIMIT:
                await clock.sleep(TAIL_INTERVAL_S)

    async def _dead_letter(self, event_id: UUID) -> EventRow:
        row = await self.show(event_id)
        if row.status != "DEAD":
            raise RefusedError(f"event {event_id} is {row.status}; only a DEAD one can be changed")
        return row


async def paused_streams(database: Database) -> set[str]:
    """Return the streams from which no consumer takes events."""
    return {row[0] for row in await database.fetch("SELECT stream FROM outbox_paused")}


_gauges = {
    name: telemetry.gauge(f"everbit_outbox_{name}", text, ("stream",))
    for name, text in {
        "pending": "Events waiting for their first attempt or a retry.",
        "processing": "Events in flight.",
        "dead": "Dead letters.",
        "oldest_pending_seconds": "Age of the oldest due event.",
    }.items()
}


class Depth(msgspec.Struct, frozen=True):
    """Number of events in one stream by status."""

    stream: str
    pending: int = 0
    processing: int = 0
    dead: int = 0
    oldest_pending_s: float = 0.0


class OutboxMaintenance:
    """Periodic update of the gauges, once per system; a second instance is harmless."""

    def __init__(
        self, database: Database, config: OutboxConfig, clock: Clock | None = None
    ) -> None:
        self._database = database
        self._config = config
        self._clock = clock or SystemClock()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await update_gauges(self._database, self._config.streams)
            except TRANSIENT_ERRORS as error:
                log.warning("outbox gauges not updated; retrying", error=str(error))
            await self._clock.sleep(GAUGE_INTERVAL_S)


async def rotate_partitions(database: Database, keep_days: int) -> list[str]:
    """Create the partitions of the next days, drop expired ones and return their names."""
    await database.execute("SELECT outbox_make_days($1)", DAYS_AHEAD)
    rows = await database.fetch("SELECT outbox_drop_days($1)", keep_days)
    return [row[0] for row in rows]


async def stream_depths(database: Database, streams: Iterable[str]) -> list[Depth]:
    """Return the depth of these streams, then of any others that hold events."""
    found = {row["stream"]: Depth(*row) for row in await database.fetch(SQL.depths)}
    known = [found.pop(stream, Depth(stream)) for stream in streams]
    return known + [found[stream] for stream in sorted(found)]


async def update_gauges(database: Database, streams: Iterable[str]) -> list[Depth]:
    """Set the gauges to the depths, and return those."""
    depths = await stream_depths(database, streams)
    for depth in depths:
        _gauges["pending"].labels(depth.stream).set(depth.pending)
        _gauges["processing"].labels(depth.stream).set(depth.processing)
        _gauges["dead"].labels(depth.stream).set(depth.dead)
        _gauges["oldest_pending_seconds"].labels(depth.stream).set(depth.oldest_pending_s)
    return depths
