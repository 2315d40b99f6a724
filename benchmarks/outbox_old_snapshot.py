"""Time of a claim while another session keeps an old snapshot: the first and the last of many."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import asyncpg
import numpy as np

from benchmarks.peers_outbox import AGGREGATES, BATCH, STREAM, copy_rows, noop_event, row_of
from benchmarks.report import Goal, Row
from qts.database import Connection, Database, DatabaseConfig
from qts.domain import Secret
from qts.outbox import StreamConfig
from qts.outbox.claims import BEGINNING, Claims, Horizon

CLAIM = 100
SHARE = 5  # the first and the last fifth are compared


class Claimer(NamedTuple):
    """Claims as a worker does; without a horizon, every claim scans all rows."""

    claims: Claims
    horizon: Horizon | None

    @classmethod
    def of(cls, ordered: bool, with_horizon: bool) -> Claimer:
        config = StreamConfig(ordered=ordered)
        return cls(Claims(STREAM, config), Horizon(STREAM, ordered) if with_horizon else None)

    async def handle(self, connection: Connection) -> float:
        """Claim and complete; return the milliseconds of the claim."""
        since, first_id, closed_to = BEGINNING, 0, BEGINNING
        if self.horizon:
            since, first_id = self.horizon.due_from, self.horizon.first_id
            closed_to = self.horizon.closed_to
        began = time.perf_counter()
        claimed = await self.claims.claim(connection, CLAIM, 0, since, first_id)
        took_ms = (time.perf_counter() - began) * 1e3
        await self.claims.complete(connection, claimed)
        if self.horizon:
            self.horizon.advance(claimed[-1].due_at, closed_to)
            await self.horizon.update(connection, time.monotonic_ns())
        return took_ms


async def measure(url: Secret, events: int) -> list[Row]:
    found: dict[tuple[bool, bool], Any] = {}
    async with Database.open(url, DatabaseConfig(pool_min=2, pool_max=4)) as database:
        for ordered in (False, True):
            for with_horizon in (True, False):
                took = await _under_old_snapshot(
                    url, database, Claimer.of(ordered, with_horizon), events
                )
                found[ordered, with_horizon] = np.array(took)
    return [row for ordered in (False, True) for row in _rows(ordered, found, events)]


async def _under_old_snapshot(
    url: Secret, database: Database, claimer: Claimer, events: int
) -> list[float]:
    await database.execute("VACUUM outbox_event")
    holder = await asyncpg.connect(url.reveal())
    try:
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await holder.fetchval("SELECT count(*) FROM outbox_event")
        return await _churn(database, claimer, events)
    finally:
        await holder.close()


async def _churn(database: Database, claimer: Claimer, events: int) -> list[float]:
    took: list[float] = []
    async with database.connection() as connection:
        await claimer.claims.prepare(connection)
        for start in range(0, events, BATCH):
            rows = [row_of(noop_event(number)) for number in range(start, start + BATCH)]
            async with database.transaction() as tx:
                await copy_rows(tx, rows)
            took += [await claimer.handle(connection) for _ in range(BATCH // CLAIM)]
    return took


def _rows(ordered: bool, found: Any, events: int) -> list[Row]:
    kind = f"ordered, {AGGREGATES} aggregates" if ordered else "plain"
    ours, without = found[ordered, True], found[ordered, False]
    part = len(ours) // SHARE
    first, last = (float(np.median(part_ms)) for part_ms in (ours[:part], ours[-part:]))
    flat = (Goal("ratio", "<=", 1.5),)
    against = float(np.median(without[-part:]))
    note = f"{events:,} events handled"
    return [
        _row(f"claim under an old snapshot, {kind}", last, first, "its first claims", flat, note),
        _row(f"claim under an old snapshot, {kind}", last, against, "without a horizon", (), note),
    ]


def _row(
    name: str, ours: float, peer: float, against: str, goals: tuple[Goal, ...], note: str
) -> Row:
    return Row(
        name=name,
        metric="median",
        unit="ms",
        better="lower",
        ours=ours,
        peer=peer,
        peer_name=against,
        goals=goals,
        note=note,
    )
