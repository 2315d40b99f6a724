"""Dead letters in PostgreSQL as a person deals with them: look, ask for a replay, purge.

The desk runs no engine. A letter asked for is published by the next engine that looks
(`Engine.keep_dead_letters`); until then it stays asked for.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from qts.domain import Clock, EventRefusedError, SystemClock
from qts.events.postgres import Database

_COLUMNS = (
    "number, event_id, event_type, priority, handler, error, died_at, replay_asked_at, "
    "replayed_at, event"
)


class KeptLetter(msgspec.Struct, frozen=True):
    """A row as it is, also of a type this program does not know."""

    number: int
    event_id: str
    event_type: str
    priority: int
    handler: str
    error: str
    died_at: datetime
    replay_asked_at: datetime | None
    replayed_at: datetime | None
    event: dict[str, Any]

    @property
    def state(self) -> str:
        if self.replayed_at:
            return "replayed"
        return "asked" if self.replay_asked_at else "dead"


class DeadLetterDesk:
    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()

    async def find(self, limit: int, event_type: str | None, replayed: bool) -> list[KeptLetter]:
        """The newest first; those published again only when asked for."""
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM event_dead_letter "  # noqa: S608 - our own words
            "WHERE ($2::text IS NULL OR event_type = $2) AND ($3 OR replayed_at IS NULL) "
            "ORDER BY number DESC LIMIT $1",
            limit,
            event_type,
            replayed,
        )
        return [_letter(row) for row in rows]

    async def show(self, number: int) -> KeptLetter:
        row = await self._database.fetchrow(
            f"SELECT {_COLUMNS} FROM event_dead_letter WHERE number = $1",  # noqa: S608 - the same
            number,
        )
        if row is None:
            raise EventRefusedError(f"no dead letter has number {number}; qts dead-letters list")
        return _letter(row)

    async def ask(self, number: int) -> KeptLetter:
        """Mark it for the next engine that looks; asked for twice is asked for once."""
        letter = await self.show(number)
        if letter.replayed_at is not None:
            when = letter.replayed_at.strftime("%Y-%m-%d %H:%M:%S")
            raise EventRefusedError(
                f"dead letter {number} was published again already, at {when} UTC"
            )
        await self._database.execute(
            "UPDATE event_dead_letter SET replay_asked_at = now() "
            "WHERE number = $1 AND replay_asked_at IS NULL AND replayed_at IS NULL",
            number,
        )
        return await self.show(number)

    async def taken(self, number: int, seconds: float) -> KeptLetter:
        """The letter once an engine has published it, or as it is when the time is up."""
        end = self._clock.monotonic_ns() + seconds * 1e9
        while True:
            letter = await self.show(number)
            if letter.state != "asked" or self._clock.monotonic_ns() >= end:
                return letter
            await self._clock.sleep(0.1)

    async def purge(self, older_than_s: float, unplayed: bool) -> int:
        """Delete those published again so long ago; with `unplayed`, also those that died then."""
        before = self._clock.now() - timedelta(seconds=older_than_s)
        done = await self._database.execute(
            "DELETE FROM event_dead_letter WHERE replayed_at < $1 "
            "OR ($2 AND replayed_at IS NULL AND died_at < $1)",
            before,
            unplayed,
        )
        return int(done.split()[-1])


def _letter(row: Any) -> KeptLetter:
    return KeptLetter(**{name: row[name] for name in KeptLetter.__struct_fields__})
