"""Upkeep of the outbox: gauges, and its daily partitions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, SystemClock
from qts.outbox.completer import TRANSIENT_ERRORS
from qts.outbox.config import OutboxConfig
from qts.outbox.queries import SQL

DAYS_AHEAD = 7
GAUGE_INTERVAL_S = 5.0

log = telemetry.logger("outbox")

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
