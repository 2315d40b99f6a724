"""Events whose handler gave up: kept, listed, shown and published again.

They are kept in memory, the newest so many; where there is a database, `keep` moves them there.
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

Publish = Callable[[Event, float], Awaitable[None]]  # an event, and how long to wait for room
_REPLAY_S = 5.0  # how long a replay waits for room in its lane


class RemoteHandlerError(OperationError):
    """An error in the words of the process where it happened."""


class DeadLetter(msgspec.Struct, frozen=True):
    """One event that one handler gave up on."""

    number: int
    event: Event
    handler: str
    error: str
    died_at: datetime


class DeadLetterStore(Protocol):
    """Where dead letters survive a crash."""

    async def add(self, letters: list[DeadLetter]) -> None: ...
    async def list(self, limit: int) -> list[DeadLetter]: ...
    async def show(self, number: int) -> DeadLetter: ...
    async def replayed(self, number: int) -> None: ...
    async def claim(self) -> DeadLetter | None: ...
    async def unclaim(self, number: int) -> None: ...


class DeadLetterBuffer:
    """The newest in memory; any thread may add."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._letters: deque[DeadLetter] = deque(maxlen=most)
        self._clock = clock
        self._lock = threading.Lock()
        self._unkept: deque[DeadLetter] = deque(maxlen=most)
        self.count = 0
        self.forgotten = 0  # pushed out of memory before any store took them

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
            if len(self._unkept) == self._unkept.maxlen:
                self.forgotten += 1
            self._letters.append(letter)
            self._unkept.append(letter)
        return letter

    def list(self, limit: int = 100) -> list[DeadLetter]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._letters))[:limit]

    def show(self, number: int) -> DeadLetter:
        with self._lock:
            for letter in self._letters:
                if letter.number == number:
                    return letter
        raise EventRefusedError(f"no dead letter has number {number}; list() shows those there are")

    def remove(self, number: int) -> None:
        with self._lock:
            for letters in (self._letters, self._unkept):
                for letter in [each for each in letters if each.number == number]:
                    letters.remove(letter)

    async def flush(self, store: DeadLetterStore) -> int:
        """Move what is not yet there into the store; what cannot be moved stays."""
        with self._lock:
            taken = [*self._unkept]
        if taken:
            await store.add(taken)
        with self._lock:
            for letter in taken:
                if letter in self._unkept:
                    self._unkept.remove(letter)
        return len(taken)

    async def keep(
        self, store: DeadLetterStore, every_s: float, publish: Publish | None = None
    ) -> None:
        """Flush until cancelled, and once more then; publish what people have asked for."""
        waiting = False
        try:
            while True:
                try:
                    await self.flush(store)
                    if publish is not None:
                        await replay_requested(store, publish)
                    if waiting:
                        log.info("dead letters are kept again")
                    waiting = False
                except OperationError as error:  # also read-only, or its disk is full: it passes
                    if not waiting:
                        log.warning("dead letters wait for the database", error=str(error))
                    waiting = True
                await self._clock.sleep(every_s)
        finally:
            await self.flush(store)


def reset_retries(letter: DeadLetter) -> Event:
    """The event as it was first published."""
    return msgspec.structs.replace(letter.event, retry_count=0)


async def replay_requested(store: DeadLetterStore, publish: Publish) -> None:
    """Publish what people have asked for; what is refused is told and stays dead."""
    while True:
        try:
            letter = await store.claim()
            if letter is None:
                return
        except EventRefusedError as error:
            log.error("a dead letter was not replayed", error=str(error))
            continue
        try:
            await publish(reset_retries(letter), _REPLAY_S)
        except (EventRefusedError, LaneFullError) as error:
            await store.unclaim(letter.number)
            log.error("a dead letter was not replayed", number=letter.number, error=str(error))
            return


def encode(event: Event) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(event)
    return built


def decode(data: dict[str, Any], catalogue: Catalogue) -> Event:
    """An event out of JSON, its payload typed again."""
    payload = msgspec.convert(data["payload"], catalogue[data["event_type"]].payload)
    return msgspec.convert({**data, "payload": payload}, Event)
