"""Dead letters: events whose handler has used up its retries.

The newest are buffered in memory; `DeadLetterBuffer.persist` moves them to a store.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
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


def encode(event: Event) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(event)
    return built


def decode(data: dict[str, Any], catalogue: Catalogue) -> Event:
    """Return the event of a stored JSON object, with its typed payload."""
    payload = msgspec.convert(data["payload"], catalogue[data["event_type"]].payload)
    return msgspec.convert({**data, "payload": payload}, Event)
