"""Wake-ups for consumers: with the publisher's transaction while few publish, else apart from it.

A NOTIFY inside a transaction comes soonest, but commits that have one wait for each other. So one
transaction at a time has one, of all that publish here. For the others a connection of our own
asks whether they are through, and wakes the streams of those that are: once for all that gathered
in the meantime.

    published ─▶ pending ─▶ committed: wake · rolled back: forget · open: look again

The driver tells us when a statement of the publisher's connection has ended, so that the first
look mostly comes right after the COMMIT. What it does not tell is found by looking again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import Clock, QtsError
from qts.outbox.queries import SQL

FIRST_LOOK_S = 0.0005  # a short transaction is through by then
BETWEEN_WAKES_S = 0.003
LONGEST_LOOK_S = 0.05
RETRY_S = 0.5
LINGER_S = 0.5  # the connection is kept so long for what is published next

log = telemetry.logger("outbox")


class WakeupNotifier:
    """For one event loop; `published` never waits."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._pending: set[tuple[int, str]] = set()
        self._telling: Any = None  # the connection whose transaction has a NOTIFY
        self._told_ns = 0
        self._look_s = FIRST_LOOK_S
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def may_tell(self, tx: Any) -> bool:
        """Whether this transaction should wake the consumers itself."""
        now_ns = self._clock.monotonic_ns()
        if _is_open(self._telling):
            return tx is self._telling
        if now_ns - self._told_ns < BETWEEN_WAKES_S * 1e9:
            return False
        self._telling, self._told_ns = tx, now_ns
        return True

    def published(self, xid: int, stream: str, tx: Any) -> None:
        self._pending.add((xid, stream))
        if tx.is_in_transaction():
            # One for each connection, however often it is added; it stays there.
            tx.add_query_logger(self._statement_ended)
        else:
            self._look.set()
        if self._task is None or self._task.done():
            self._look_s = FIRST_LOOK_S
            self._task = asyncio.create_task(self._wake_all())

    async def close(self) -> None:
        """What was not told yet is found by the consumers' own polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _statement_ended(self, statement: Any) -> None:
        if self._pending and statement.query.startswith("COMMIT"):
            self._look.set()

    async def _wake_all(self) -> None:
        while self._pending:
            try:
                async with self._database.connection() as connection:
                    while self._pending or await self._told_within(LINGER_S):
                        await self._wake_on(connection)
            except QtsError as error:
                log.warning("cannot wake consumers, trying again", error=str(error))
                await self._clock.sleep(RETRY_S)

    async def _wake_on(self, connection: Connection) -> None:
        await self._told_within(self._look_s)
        self._look.clear()
        asked = list(self._pending)
        seen = await connection.fetch(
            SQL.notify, [xid for xid, _ in asked], [stream for _, stream in asked]
        )
        still_open = {row["xid"] for row in seen if row["open"]}
        self._pending.difference_update(pair for pair in asked if pair[0] not in still_open)
        if any(row["woken"] for row in seen):
            self._look_s = BETWEEN_WAKES_S
            await self._clock.sleep(BETWEEN_WAKES_S)
        else:
            self._look_s = min(self._look_s * 1.6, LONGEST_LOOK_S)

    async def _told_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._look.wait()
        except TimeoutError:
            return False
        return True


def _is_open(connection: Any) -> bool:
    try:
        return connection is not None and bool(connection.is_in_transaction())
    except asyncpg.InterfaceError:  # it was given back to the pool
        return False
