"""Dead letters in PostgreSQL."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from qts.domain import EventRefusedError
from qts.events.catalogue import Catalogue
from qts.events.dead_letters import DeadLetter, decode, encode

_ADD = """
    INSERT INTO event_dead_letter (event_id, event_type, priority, handler, error, event, died_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (event_id, handler, died_at) DO NOTHING
"""
_COLUMNS = "number, event, handler, error, died_at"
_CLAIM = f"""
    UPDATE event_dead_letter SET replayed_at = now() WHERE number = (
        SELECT number FROM event_dead_letter
        WHERE replay_asked_at IS NOT NULL AND replayed_at IS NULL
        ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING {_COLUMNS}
"""  # noqa: S608 - our own words


class Database(Protocol):
    """The part of a database this file needs."""

    async def execute(self, query: str, *args: Any) -> str: ...
    async def fetch(self, query: str, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any) -> Any: ...


class PostgresDeadLetters:
    """A store that survives a crash; adding the same letter twice keeps one."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue

    async def add(self, letters: list[DeadLetter]) -> None:
        for each in letters:
            await self._database.execute(
                _ADD,
                each.event.event_id,
                each.event.event_type,
                each.event.priority,
                each.handler,
                each.error,
                encode(each.event),
                each.died_at,
            )

    async def list(self, limit: int) -> list[DeadLetter]:
        """Not yet replayed, the newest first."""
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM event_dead_letter WHERE replayed_at IS NULL "  # noqa: S608 - our own words
            "ORDER BY number DESC LIMIT $1",
            limit,
        )
        return [self._letter(row) for row in rows]

    async def show(self, number: int) -> DeadLetter:
        row = await self._database.fetchrow(
            f"SELECT {_COLUMNS} FROM event_dead_letter WHERE number = $1",  # noqa: S608
            number,
        )
        if row is None:
            raise EventRefusedError(f"no dead letter has number {number}")
        return self._letter(row)

    async def claim(self) -> DeadLetter | None:
        """One that a person has asked for; it counts as replayed, and no other engine gets it."""
        row = await self._database.fetchrow(_CLAIM)
        if row is None:
            return None
        try:
            return self._letter(row)
        except (EventRefusedError, msgspec.ValidationError) as error:
            await self.unclaim(row["number"])
            raise EventRefusedError(
                f"dead letter {row['number']} cannot be replayed: {error}"
            ) from None

    async def unclaim(self, number: int) -> None:
        """It could not be published: dead as before, until it is asked for again."""
        await self._database.execute(
            "UPDATE event_dead_letter SET replayed_at = NULL, replay_asked_at = NULL "
            "WHERE number = $1",
            number,
        )

    async def replayed(self, number: int) -> None:
        await self._database.execute(
            "UPDATE event_dead_letter SET replayed_at = now() WHERE number = $1", number
        )

    def _letter(self, row: Any) -> DeadLetter:
        event = decode(row["event"], self._catalogue)
        return DeadLetter(row["number"], event, row["handler"], row["error"], row["died_at"])
