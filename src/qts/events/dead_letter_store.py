"""Dead letters in PostgreSQL: the engine's store, and the operator's list, replay and purge.

`DeadLetterAdmin` runs no engine. It marks a letter for replay, and the next engine that runs
`EventEngine.persist_dead_letters` on the same database publishes it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from qts import telemetry
from qts.domain import Clock, EventRefusedError, OperationError, SystemClock
from qts.events.catalogue import Catalogue
from qts.events.dead_letters import DeadLetter, decode, encode, encode_as_text, storable

log = telemetry.logger("events")

_ADD = """
    INSERT INTO event_dead_letter (event_id, event_type, priority, handler, error, event, died_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (event_id, handler, died_at) DO NOTHING
"""
_REQUESTED = """
    SELECT number, event, handler, error, died_at FROM event_dead_letter
    WHERE replay_asked_at IS NOT NULL AND replayed_at IS NULL ORDER BY number LIMIT 1
"""
_CLAIM = """
    UPDATE event_dead_letter SET replayed_at = now()
    WHERE number = $1 AND replay_asked_at IS NOT NULL AND replayed_at IS NULL RETURNING number
"""
_REFUSE = """
    UPDATE event_dead_letter SET replay_asked_at = NULL WHERE number = $1 AND replayed_at IS NULL
"""


class QueryRunner(Protocol):
    """Methods of a database that this module uses."""

    async def execute(self, query: str, *args: Any) -> str: ...
    async def fetch(self, query: str, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any) -> Any: ...


class PostgresDeadLetterStore:
    """Store that survives a crash; adding the same letter twice stores one."""

    def __init__(self, database: QueryRunner, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue

    async def add(self, letters: list[DeadLetter]) -> None:
        for each in letters:
            try:
                await self._add(each, encode(each.event))
            except OperationError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever JSON or the driver refuses
                log.error(
                    "dead letter stored as text; it cannot be replayed",
                    eventId=each.event.event_id,
                    error=str(error),
                )
                await self._add(each, encode_as_text(each.event))

    async def _add(self, letter: DeadLetter, event: dict[str, Any]) -> None:
        await self._database.execute(
            _ADD,
            storable(letter.event.event_id),
            letter.event.event_type,
            letter.event.priority,
            storable(letter.handler),
            storable(letter.error),
            event,
            letter.died_at,
        )

    async def claim(self) -> DeadLetter | None:
        """Take a letter whose replay was requested and mark it replayed, for one engine only.

        One that cannot be published is dead again, without being marked in between.
        """
        while (row := await self._database.fetchrow(_REQUESTED)) is not None:
            number = row["number"]
            try:
                letter = self._letter(row)
            except (EventRefusedError, msgspec.ValidationError) as error:
                await self._database.execute(_REFUSE, number)
                raise EventRefusedError(
                    f"dead letter {number} cannot be replayed: {error}"
                ) from None
            if await self._database.fetchrow(_CLAIM, number) is not None:
                return letter
        return None

    async def unclaim(self, number: int) -> None:
        """Mark a claimed letter dead again, until its replay is requested again."""
        await self._database.execute(
            "UPDATE event_dead_letter SET replayed_at = NULL, replay_asked_at = NULL "
            "WHERE number = $1",
            number,
        )

    def _letter(self, row: Any) -> DeadLetter:
        event = decode(row["event"], self._catalogue)
        self._catalogue[event.event_type].check_priority(event)
        return DeadLetter(row["number"], event, row["handler"], row["error"], row["died_at"])


class StoredDeadLetter(msgspec.Struct, frozen=True):
    """Row of the table; its event type need not be in the catalogue."""

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


_COLUMNS = ", ".join(StoredDeadLetter.__struct_fields__)


class DeadLetterAdmin:
    """Manual inspection, replay and purge of stored dead letters."""

    def __init__(self, database: QueryRunner, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()

    async def find(
        self, limit: int, event_type: str | None, replayed: bool, before: int | None = None
    ) -> list[StoredDeadLetter]:
        """Return the newest first, with `replayed` also those that were replayed.

        `before` is the number that they come before.
        """
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM event_dead_letter "  # noqa: S608 - constants only
            "WHERE ($2::text IS NULL OR event_type = $2) AND ($3 OR replayed_at IS NULL) "
            "AND ($4::bigint IS NULL OR number < $4) ORDER BY number DESC LIMIT $1",
            limit,
            event_type,
            replayed,
            before,
        )
        return [_letter(row) for row in rows]

    async def show(self, number: int) -> StoredDeadLetter:
        row = await self._database.fetchrow(
            f"SELECT {_COLUMNS} FROM event_dead_letter WHERE number = $1",  # noqa: S608
            number,
        )
        if row is None:
            raise EventRefusedError(
                f"no dead letter has number {number}; run qts ops dead-letters list"
            )
        return _letter(row)

    async def request_replay(self, number: int) -> StoredDeadLetter:
        """Mark a letter for the next engine; a second request changes nothing."""
        letter = await self.show(number)
        if letter.replayed_at is not None:
            when = letter.replayed_at.strftime("%Y-%m-%d %H:%M:%S")
            raise EventRefusedError(f"dead letter {number} was already replayed at {when} UTC")
        await self._database.execute(
            "UPDATE event_dead_letter SET replay_asked_at = now() "
            "WHERE number = $1 AND replay_asked_at IS NULL AND replayed_at IS NULL",
            number,
        )
        return await self.show(number)

    async def wait_replayed(self, number: int, seconds: float) -> StoredDeadLetter:
        """Wait until an engine has claimed the letter or the time is up; return its row."""
        deadline = self._clock.monotonic_ns() + seconds * 1e9
        while True:
            letter = await self.show(number)
            if letter.state != "asked" or self._clock.monotonic_ns() >= deadline:
                return letter
            await self._clock.sleep(0.1)

    async def purge(self, older_than_s: float, include_dead: bool) -> int:
        """Delete letters replayed that long ago, with `include_dead` also those that died then."""
        before = self._clock.now() - timedelta(seconds=older_than_s)
        status = await self._database.execute(
            "DELETE FROM event_dead_letter WHERE replayed_at < $1 "
            "OR ($2 AND replayed_at IS NULL AND died_at < $1)",
            before,
            include_dead,
        )
        return int(status.split()[-1])


def _letter(row: Any) -> StoredDeadLetter:
    return StoredDeadLetter(**{name: row[name] for name in StoredDeadLetter.__struct_fields__})
