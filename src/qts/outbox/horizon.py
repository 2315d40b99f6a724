"""Point from which a worker scans for due events; everything before it was handled.

While a session holds an old snapshot, handled rows cannot be cleaned up, and a claim that scans
from the beginning reads all of them each time. The server reports where the first unfinished row
may be; an event that is moved before that point is found by the periodic full scan.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from qts.database import Connection
from qts.outbox.queries import SQL

BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
UPDATE_INTERVAL_NS = 20_000_000
# While a publisher's transaction stays open, the horizon does not advance. An unordered stream then
# scans from this long before its newest claim; an ordered one waits, because order comes first.
LATE_COMMIT = timedelta(seconds=1)


class Horizon:
    """Start of the scan of one worker."""

    def __init__(self, stream: str, ordered: bool) -> None:
        self._stream = stream
        self._ordered = ordered
        self._mark: tuple[datetime, int, int] = (BEGINNING, 0, 0)
        self._update_at_ns = 0
        self.due_from = BEGINNING
        self.first_id = 0  # of the unfinished events; ordered streams only
        self.closed_to = BEGINNING  # no open transaction can add an event due before this

    def advance(self, newest: datetime, closed_to: datetime) -> None:
        """Advance after a claim took all free events up to `newest`.

        `closed_to` is its value when the claim began: the claim saw all events due before it.
        """
        if not self._ordered:
            self.due_from = max(self.due_from, min(newest, closed_to), newest - LATE_COMMIT)

    async def update(self, connection: Connection, now_ns: int) -> None:
        """Read the horizon from the server, at most once per interval."""
        if now_ns < self._update_at_ns:
            return
        self._update_at_ns = now_ns + UPDATE_INTERVAL_NS
        row = await connection.fetchrow(
            SQL.horizon, self._stream, self._ordered, self.due_from, self.first_id, *self._mark
        )
        if row is None:
            return
        due_from, self.first_id, mark_at, mark_id, mark_xid = row
        self.due_from = max(self.due_from, due_from)  # a claim may have advanced it meanwhile
        if mark_xid != self._mark[2]:
            self.closed_to = self._mark[0]
            self._mark = (mark_at, mark_id, mark_xid)
