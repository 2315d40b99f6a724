"""Dead letters: events whose handler has used up its retries.

The newest are buffered in memory; `DeadLetterBuffer.persist` moves them to a store.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from qts import telemetry
from qts.domain import Clock, EventRefusedError, LaneFullError, OperationError
from qts.events.catalogue import Catalogue
from qts.events.event import Event

log = telemetry.logger("events")

Publish = Callable[[Event, float], Awaitable[None]]  # event, timeout in seconds
_REPLAY_TIMEOUT_S = 5.0  # for capacity in the event's lane


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
    if not any(_UNSTORABLE.search(text) for text in _texts(built)):
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


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from (str(name), *_texts(each))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            change(name) if isinstance(name, str) else name: _map_texts(each, change)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_texts(each, change) for each in value]
    return value
