"""Dead letters: events whose handler has used up its retries, in memory and in PostgreSQL.

The newest are buffered in memory; `DeadLetterBuffer.persist` moves them to a store.
`DeadLetterAdmin` runs no engine. It marks a stored letter for replay, and the next engine that runs
`EventEngine.persist_dead_letters` on the same database publishes it.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from qts import telemetry
from qts.domain import Clock, EventRefusedError, LaneFullError, OperationError, SystemClock
from qts.events.catalogue import Catalogue, Event

log = telemetry.logger("events")

Publish = Callable[[Event, float], Awaitable[None]]  # event, timeout in seconds
_REPLAY_TIMEOUT_S = 5.0  # for capacity in the event's lane

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


class RemoteHandlerError(OperationError):
    """Error text received from a lane's process."""


class DeadLetter(msgspec.Struct, frozen=True):
    """Event that one handler could not handle."""

    number: int
    event: Event
    handler: str
    error: str
    died_at: datetime


class DeadLetterStore(Protocol):
    """Durable storage of dead letters."""

    async def add(self, letters: list[DeadLetter]) -> None: ...
    async def claim(self) -> DeadLetter | None: ...
    async def unclaim(self, number: int) -> None: ...


class DeadLetterBuffer:
    """The newest dead letters in memory; any thread may add."""

    def __init__(self, capacity: int, clock: Clock) -> None:
        self._letters: deque[DeadLetter] = deque(maxlen=capacity)
        self._clock = clock
        self._lock = threading.Lock()
        self._unsaved: deque[DeadLetter] = deque(maxlen=capacity)
        self.count = 0
        self.evicted = 0  # before a store had them

    def add(self, event: Event, handler: str, error: BaseException) -> DeadLetter:
        with self._lock:
            self.count += 1
            letter = DeadLetter(
                self.count,
                event,
                handler,
                str(error)
                if isinstance(error, RemoteHandlerError)
                else f"{type(error).__name__}: {error}",
                self._clock.now().astimezone(UTC),
            )
            if len(self._unsaved) == self._unsaved.maxlen:
                self.evicted += 1
            self._letters.append(letter)
            self._unsaved.append(letter)
        return letter

    def list(self, limit: int = 100) -> list[DeadLetter]:
        """Return the newest first."""
        with self._lock:
            return list(reversed(self._letters))[:limit]

    def show(self, number: int) -> DeadLetter:
        with self._lock:
            for letter in self._letters:
                if letter.number == number:
                    return letter
        raise EventRefusedError(f"no dead letter has number {number}; list() returns all of them")

    def remove(self, number: int) -> None:
        with self._lock:
            for letters in (self._letters, self._unsaved):
                for letter in [each for each in letters if each.number == number]:
                    letters.remove(letter)

    async def flush(self, store: DeadLetterStore) -> int:
        """Move unsaved letters to the store; return how many. They stay here if it fails."""
        with self._lock:
            unsaved = [*self._unsaved]
        if unsaved:
            await store.add(unsaved)
        with self._lock:
            for letter in unsaved:
                if letter in self._unsaved:
                    self._unsaved.remove(letter)
        return len(unsaved)

    async def persist(
        self, store: DeadLetterStore, interval_s: float, publish: Publish | None = None
    ) -> None:
        """Flush periodically and publish requested replays; flush once more when cancelled."""
        unavailable = False
        try:
            while True:
                try:
                    await self.flush(store)
                    if publish is not None:
                        await replay_requested(store, publish)
                    if unavailable:
                        log.info("dead letter store available again")
                    unavailable = False
                except OperationError as error:  # also a read-only database or a full disk
                    if not unavailable:
                        log.warning("dead letter store unavailable; retrying", error=str(error))
                    unavailable = True
                except Exception:  # a letter must not end the task that keeps the others
                    if not unavailable:
                        log.error("dead letters not stored; retrying", exc_info=True)
                    unavailable = True
                await self._clock.sleep(interval_s)
        finally:
            await self.flush(store)


def reset_retries(letter: DeadLetter) -> Event:
    """Return the event as it was first published."""
    return msgspec.structs.replace(letter.event, retry_count=0)


async def replay_requested(store: DeadLetterStore, publish: Publish) -> None:
    """Publish every letter whose replay was requested; one that is refused stays dead."""
    while True:
        try:
            letter = await store.claim()
            if letter is None:
                return
        except EventRefusedError as error:
            log.error("dead letter not replayed", error=str(error))
            continue
        try:
            await publish(reset_retries(letter), _REPLAY_TIMEOUT_S)
        except (EventRefusedError, LaneFullError) as error:
            await store.unclaim(letter.number)
            log.error("dead letter not replayed", number=letter.number, error=str(error))
            return


# PostgreSQL stores neither NUL nor half of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|u[0-9a-f]{4})")


def storable(text: str) -> str:
    """Return the text with \\u0000 and \\udxxx in place of what PostgreSQL cannot store."""
    return _UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def encode(event: Event) -> dict[str, Any]:
    """Return the event as a JSON object; all its texts escaped where one could not be stored."""
    built: dict[str, Any] = msgspec.to_builtins(event)
    if _map_texts(built, storable) == built:
        return built
    escaped = _map_texts(built, lambda text: storable(text.replace("\\", "\\\\")))
    return {**escaped, "escaped": True}


def encode_as_text(event: Event) -> dict[str, Any]:
    """Return a JSON object that names an event which JSON cannot hold; it cannot be replayed."""
    return {"event_type": event.event_type, "text": storable(repr(event))}


def decode(data: dict[str, Any], catalogue: Catalogue) -> Event:
    """Return the event of a stored JSON object, with its typed payload."""
    if "payload" not in data:
        raise EventRefusedError("the event was stored as text only")
    if data.get("escaped"):
        data = {name: value for name, value in data.items() if name != "escaped"}
        data = _map_texts(data, lambda text: _ESCAPED.sub(_unescape, text))
    payload = msgspec.convert(data["payload"], catalogue[data["event_type"]].payload)
    return msgspec.convert({**data, "payload": payload}, Event)


def _unescape(found: re.Match[str]) -> str:
    return "\\" if found[1] == "\\" else chr(int(found[1][1:], 16))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            change(name) if isinstance(name, str) else name: _map_texts(each, change)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_map_texts(each, change) for each in value)
    return value


class QueryRunner(Protocol):
    """Methods of a database that dead letters use."""

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
