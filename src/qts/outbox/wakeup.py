"""Notification of consumers: in the publisher's transaction while few publish, else separately.

A NOTIFY inside a transaction arrives soonest, but commits with a NOTIFY wait for each other. So at
most one open transaction of this process has one. For the others a dedicated connection checks
whether they have committed and notifies their streams, once for all gathered in the meantime.

    published ─▶ pending ─▶ committed: notify · rolled back: drop · open: check again

The driver reports the end of a statement on the publisher's connection, so that the first check
mostly follows the COMMIT at once. What it does not report is found by the next check.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import Clock, QtsError
from qts.outbox.queries import SQL

FIRST_CHECK_S = 0.0005  # a short transaction has committed by then
MIN_INTERVAL_S = 0.003
MAX_CHECK_INTERVAL_S = 0.05
RETRY_INTERVAL_S = 0.5
LINGER_S = 0.5  # how long the idle connection is kept

log = telemetry.logger("outbox")


class WakeupNotifier:
    """Notifier for one event loop; `published` never waits."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._pending: set[tuple[int, str]] = set()
        self._notifying_tx: Any = None  # connection whose transaction has a NOTIFY
        self._notified_ns = 0
        self._check_s = FIRST_CHECK_S
        self._check = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def may_notify(self, tx: Any) -> bool:
        """Return whether this transaction should notify the consumers itself."""
        now_ns = self._clock.monotonic_ns()
        if _is_open(self._notifying_tx):
            return tx is self._notifying_tx
        if now_ns - self._notified_ns < MIN_INTERVAL_S * 1e9:
            return False
        self._notifying_tx, self._notified_ns = tx, now_ns
        return True

    def published(self, xid: int, stream: str, tx: Any) -> None:
        self._pending.add((xid, stream))
        if tx.is_in_transaction():
            # The driver keeps one per connection, however often it is added.
            tx.add_query_logger(self._statement_ended)
        else:
            self._check.set()
        if self._task is None or self._task.done():
            self._check_s = FIRST_CHECK_S
            self._task = asyncio.create_task(self._notify_all())

    async def close(self) -> None:
        """Stop; consumers find pending events by polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _statement_ended(self, statement: Any) -> None:
        if self._pending and statement.query.startswith("COMMIT"):
            self._check.set()

    async def _notify_all(self) -> None:
        while self._pending:
            try:
                async with self._database.connection() as connection:
                    while self._pending or await self._wait_for_check(LINGER_S):
                        await self._notify_committed(connection)
            except QtsError as error:
                log.warning("notifying consumers failed; retrying", error=str(error))
                await self._clock.sleep(RETRY_INTERVAL_S)

    async def _notify_committed(self, connection: Connection) -> None:
        await self._wait_for_check(self._check_s)
        self._check.clear()
        checked = list(self._pending)
        rows = await connection.fetch(
            SQL.notify, [xid for xid, _ in checked], [stream for _, stream in checked]
        )
        still_open = {row["xid"] for row in rows if row["open"]}
        self._pending.difference_update(pair for pair in checked if pair[0] not in still_open)
        if any(row["woken"] for row in rows):
            self._check_s = MIN_INTERVAL_S
            await self._clock.sleep(MIN_INTERVAL_S)
        else:
            self._check_s = min(self._check_s * 1.6, MAX_CHECK_INTERVAL_S)

    async def _wait_for_check(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._check.wait()
        except TimeoutError:
            return False
        return True


def _is_open(connection: Any) -> bool:
    try:
        return connection is not None and bool(connection.is_in_transaction())
    except asyncpg.InterfaceError:  # returned to the pool
        return False
