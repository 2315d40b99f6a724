"""From where on a worker looks for what is due: what lies before was handled.

While a session holds an old snapshot, handled rows cannot be cleaned up, and a claim that begins
at the beginning walks over all of them, each time. The server says where the first unfinished row
may be; what is moved behind that by hand is found by a full look, now and then.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from qts.database import Connection
from qts.outbox.queries import SQL

BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
MOVE_EVERY_NS = 20_000_000
# While a publisher's transaction stays open the horizon stands still. Then a stream without order
# looks from here on; an ordered one waits, as order comes first.
LATE_COMMIT = timedelta(seconds=1)


class Horizon:
    """Of one worker."""

    def __init__(self, stream: str, ordered: bool) -> None:
        self._stream = stream
        self._ordered = ordered
        self._mark: tuple[datetime, int, int] = (BEGINNING, 0, 0)
        self._move_at_ns = 0
        self.due_from = BEGINNING
        self.first_id = 0  # of the unfinished ones; known where the stream is ordered
        self.closed_to = BEGINNING  # no open transaction can still add something due before this

    def claimed(self, newest: datetime, closed_to: datetime) -> None:
        """A claim took all that was free up to `newest`; the next one need not walk over it again.

        `closed_to` as it was when the claim began: it saw whatever is due before that.
        """
        if not self._ordered:
            self.due_from = max(self.due_from, min(newest, closed_to), newest - LATE_COMMIT)

    async def move(self, connection: Connection, now_ns: int) -> None:
        """Ask how far it is by now; seldom enough to cost nothing."""
        if now_ns < self._move_at_ns:
            return
        self._move_at_ns = now_ns + MOVE_EVERY_NS
        row = await connection.fetchrow(
            SQL.horizon, self._stream, self._ordered, self.due_from, self.first_id, *self._mark
        )
        if row is None:
            return
        due_from, self.first_id, mark_at, mark_id, mark_xid = row
        self.due_from = max(self.due_from, due_from)  # a claim may have moved it meanwhile
        if mark_xid != self._mark[2]:
            self.closed_to = self._mark[0]
            self._mark = (mark_at, mark_id, mark_xid)
