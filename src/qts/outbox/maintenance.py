"""What the bus needs now and then: partitions for the days ahead, old days dropped, gauges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, SystemClock
from qts.outbox.completer import TROUBLE
from qts.outbox.config import OutboxConfig
from qts.outbox.queries import SQL

DAYS_AHEAD = 7
GAUGES_EVERY_S = 5.0
DAYS_EVERY_S = 3600.0

log = telemetry.logger("outbox")

_gauges = {
    name: telemetry.gauge(f"everbit_outbox_{name}", about, ("stream",))
    for name, about in {
        "pending": "Events that wait, for the first or another attempt.",
        "processing": "Events in hand.",
        "dead": "Dead letters.",
        "oldest_pending_seconds": "How long the oldest due event has waited.",
    }.items()
}


class Depth(msgspec.Struct, frozen=True):
    """What lies in one stream."""

    stream: str
    pending: int = 0
    processing: int = 0
    dead: int = 0
    oldest_pending_s: float = 0.0


class OutboxMaintenance:
    """Runs beside the consumers, once per system; two at once do no harm."""

    def __init__(
        self, database: Database, config: OutboxConfig, clock: Clock | None = None
    ) -> None:
        self._database = database
        self._config = config
        self._clock = clock or SystemClock()

    async def run(self) -> None:
        """Until it is cancelled."""
        next_days_ns = self._clock.monotonic_ns()
        while True:
            with _trouble_told():
                await update_gauges(self._database, self._config.streams)
            if self._clock.monotonic_ns() >= next_days_ns:
                with _trouble_told():  # a backup that is being made may hold it up
                    await rotate_partitions(self._database, self._config.keep_days)
                    next_days_ns = self._clock.monotonic_ns() + round(DAYS_EVERY_S * 1e9)
            await self._clock.sleep(GAUGES_EVERY_S)


@contextmanager
def _trouble_told() -> Iterator[None]:
    try:
        yield
    except TROUBLE as error:
        log.warning("upkeep failed, trying again", error=str(error))


async def rotate_partitions(database: Database, keep_days: int) -> list[str]:
    """Make the partitions of the next days and drop those too old; answers what was dropped."""
    await database.execute("SELECT outbox_make_days($1)", DAYS_AHEAD)
    rows = await database.fetch("SELECT outbox_drop_days($1)", keep_days)
    return [row[0] for row in rows]


async def stream_depths(database: Database, streams: Iterable[str]) -> list[Depth]:
    """The streams in this order, then any others that hold events."""
    found = {row["stream"]: Depth(*row) for row in await database.fetch(SQL.depths)}
    named = [found.pop(stream, Depth(stream)) for stream in streams]
    return named + [found[stream] for stream in sorted(found)]


async def update_gauges(database: Database, streams: Iterable[str]) -> list[Depth]:
    """Set the gauges."""
    measured = await stream_depths(database, streams)
    for depth in measured:
        _gauges["pending"].labels(depth.stream).set(depth.pending)
        _gauges["processing"].labels(depth.stream).set(depth.processing)
        _gauges["dead"].labels(depth.stream).set(depth.dead)
        _gauges["oldest_pending_seconds"].labels(depth.stream).set(depth.oldest_pending_s)
    return measured
