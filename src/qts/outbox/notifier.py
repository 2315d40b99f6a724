"""Wake-ups for consumers, after the publisher's transaction and apart from it.

A NOTIFY inside every transaction makes concurrent commits wait for each other. Here a
connection of our own asks whether the publishers' transactions are through, and wakes the
streams of those that are: once for all that gathered in the meantime.

    published ─▶ pending ─▶ committed: wake · rolled back: forget · open: look again
"""

from __future__ import annotations

import asyncio

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import Clock, QtsError
from qts.outbox.queries import SQL

FIRST_LOOK_S = 0.0005  # a short transaction is through by then
BETWEEN_WAKES_S = 0.003
LONGEST_LOOK_S = 0.05
RETRY_S = 0.5

log = telemetry.logger("outbox")


class Notifier:
    """For one event loop; `published` never waits."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._pending: set[tuple[int, str]] = set()
        self._look_s = FIRST_LOOK_S
        self._task: asyncio.Task[None] | None = None

    def published(self, xid: int, stream: str) -> None:
        self._pending.add((xid, stream))
        self._look_s = min(self._look_s, BETWEEN_WAKES_S)
        if self._task is None or self._task.done():
            self._look_s = FIRST_LOOK_S
            self._task = asyncio.create_task(self._wake_all())

    async def close(self) -> None:
        """What was not told yet is found by the consumers' own polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _wake_all(self) -> None:
        while self._pending:
            try:
                async with self._database.connection() as connection:
                    await self._wake_on(connection)
            except QtsError as error:
                log.warning("cannot wake consumers, trying again", error=str(error))
                await self._clock.sleep(RETRY_S)

    async def _wake_on(self, connection: Connection) -> None:
        while self._pending:
            await self._clock.sleep(self._look_s)
            asked = list(self._pending)
            seen = await connection.fetch(
                SQL.notify, [xid for xid, _ in asked], [stream for _, stream in asked]
            )
            still_open = {row["xid"] for row in seen if row["open"]}
            self._pending.difference_update(pair for pair in asked if pair[0] not in still_open)
            woken = any(row["woken"] for row in seen)
            self._look_s = BETWEEN_WAKES_S if woken else min(self._look_s * 1.6, LONGEST_LOOK_S)
