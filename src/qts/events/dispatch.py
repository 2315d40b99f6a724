"""Calling handlers: retries in place, dead letters, async handlers and acknowledgement.

What the lanes call directly (plain and batch handlers of P1 to P3) comes here only when it fails.
P0 and types with an async handler come through `Managed` for every event.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from qts import telemetry
from qts.domain import OperationError
from qts.events.catalogue import EventType
from qts.events.event import Event, Priority
from qts.events.handlers import EventHandler
from qts.events.lanes import Lanes
from qts.events.loops import LoopThread, SerialTaskQueue

log = telemetry.logger("events")

GaveUp = Callable[[Event, EventHandler, BaseException], None]


class RetryCounter(Protocol):
    """Who counts that an event is tried again."""

    def retried(self, lane: int, sequence: int, type: int) -> None: ...  # noqa: A002 - as the core has it


class DeadLetterSink(Protocol):
    """Who keeps what was given up."""

    def add(self, event: Event, handler: str, error: BaseException) -> object: ...


class HandlerRetry:
    """Tries a failed handler again, its event's place kept, until it is done or given up."""

    def __init__(self, lanes: RetryCounter, dead: DeadLetterSink, gave_up: GaveUp) -> None:
        self._lanes = lanes
        self._dead = dead
        self._gave_up = gave_up

    def again(
        self, event: Event, handler: EventHandler, error: BaseException, sequence: int, number: int
    ) -> bool:
        """True when it was handled after all."""
        for attempt in range(event.retry_count + 1, event.max_retries + 1):
            self._note(event, handler, error, attempt, sequence, number)
            try:
                handler.call(msgspec.structs.replace(event, retry_count=attempt))
            except Exception as new:  # noqa: BLE001 - whatever a handler raises is its failure
                error = new
            else:
                return True
        self.give_up(event, handler, error)
        return False

    async def attempt(self, event: Event, handler: EventHandler, limit_s: float | None) -> bool:
        error: BaseException | None = None
        for attempt in range(event.retry_count, event.max_retries + 1):
            try:
                async with asyncio.timeout(limit_s):
                    await handler.call(msgspec.structs.replace(event, retry_count=attempt))
            except Exception as new:  # noqa: BLE001 - the same
                error = new
                log.warning("an async handler failed", handler=handler.name, error=str(new))
            else:
                return True
        self.give_up(event, handler, error or OperationError("no attempt was allowed"))
        return False

    def batch_again(
        self,
        events: Sequence[Event],
        handler: EventHandler,
        error: BaseException,
        sequences: Sequence[int],
        number: int,
    ) -> list[bool]:
        """The whole batch again, then one by one, so that only the poisoned die."""
        tries = min(event.max_retries for event in events)
        for attempt in range(1, tries + 1):
            for event, sequence in zip(events, sequences, strict=True):
                self._note(event, handler, error, attempt, sequence, number)
            try:
                handler.call(
                    [msgspec.structs.replace(event, retry_count=attempt) for event in events]
                )
            except Exception as new:  # noqa: BLE001 - the same
                error = new
            else:
                return [True] * len(events)
        return [self._alone(event, handler) for event in events]

    def _alone(self, event: Event, handler: EventHandler) -> bool:
        try:
            handler.call([msgspec.structs.replace(event, retry_count=event.max_retries)])
        except Exception as error:  # noqa: BLE001 - the same
            self.give_up(event, handler, error)
            return False
        return True

    def give_up(self, event: Event, handler: EventHandler, error: BaseException) -> None:
        self._dead.add(event, handler.name, error)
        if due := telemetry.log_every(1, f"dead {handler.name}"):
            log.error(
                "a handler gave up on an event",
                handler=handler.name,
                eventType=event.event_type,
                eventId=event.event_id,
                error=str(error),
                **due,
            )
        self._gave_up(event, handler, error)

    def _note(
        self,
        event: Event,
        handler: EventHandler,
        error: BaseException,
        attempt: int,
        sequence: int,
        number: int,
    ) -> None:
        self._lanes.retried(event.priority, sequence, number)
        if due := telemetry.log_every(1, f"retry {handler.name}"):
            log.warning(
                "a handler failed and is tried again",
                handler=handler.name,
                eventType=event.event_type,
                attempt=attempt,
                error=str(error),
                **due,
            )


class AckTracker:
    """Who waits for the acknowledgement of which event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[None]] = {}

    def expect(self, event: Event) -> Future[None]:
        with self._lock:
            return self._waiting.setdefault(event.event_id, Future())

    def forget(self, event: Event) -> None:
        with self._lock:
            self._waiting.pop(event.event_id, None)

    def settle(self, event: Event, handled: bool) -> None:
        with self._lock:
            future = self._waiting.pop(event.event_id, None)
        if future is None:
            return
        if handled:
            future.set_result(None)
        else:
            future.set_exception(
                OperationError(
                    f"{event.event_type} {event.event_id} was given up; see the dead letters"
                )
            )


class ManagedHandlers:
    """All handlers of one type: called for every event with its place in the lane."""

    def __init__(
        self,
        kind: EventType,
        handlers: Sequence[EventHandler],
        retry: HandlerRetry,
        acks: AckTracker,
        lanes: Lanes,
        number: int,
    ) -> None:
        self._kind = kind
        self._handlers = handlers
        self._retry = retry
        self._acks = acks
        self._lanes = lanes
        self._number = number
        self._chains: dict[int, SerialTaskQueue] = {}
        self.critical_only = False  # below P0, call essential handlers alone

    @property
    def lane(self) -> Priority:
        return self._kind.priority

    def manages(self, name: str) -> bool:
        return self._kind.name == name

    def start(self, loop: LoopThread) -> None:
        limit_ms = self._kind.max_process_time_ms if self._kind.priority == Priority.P3 else None
        limit_s = limit_ms / 1000 if limit_ms else None
        self._chains = {}
        for number, each in enumerate(self._handlers):
            if each.kind == "async":
                self._chains[number] = SerialTaskQueue(
                    loop,
                    lambda event, h=each: self._retry.attempt(event, h, limit_s),  # type: ignore[misc]
                )

    def __call__(self, event: Event, sequence: int) -> bool | None:
        """True: handled; False: given up; None: async handlers are at it, `settle` comes later."""
        skip = self.critical_only and self._kind.priority != Priority.P0
        now = [(n, each) for n, each in enumerate(self._handlers) if each.essential or not skip]
        chains = [self._chains[n] for n, each in now if each.kind == "async"]
        whole = _Whole(len(chains), lambda handled: self._settled(event, sequence, handled))
        for chain in chains:
            chain.put(event, whole.part)
        handled = True
        for _, each in now:
            if each.kind == "plain":
                handled &= self._call(event, each, sequence)
        if chains:
            whole.plain(handled)
            return None
        self._acks.settle(event, handled)
        return handled

    def _call(self, event: Event, handler: EventHandler, sequence: int) -> bool:
        try:
            handler.call(event)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            return self._retry.again(event, handler, error, sequence, self._number)
        return True

    def _settled(self, event: Event, sequence: int, handled: bool) -> None:
        self._lanes.settle(event.priority, sequence, not handled)
        self._acks.settle(event, handled)


class _Whole:
    """The parts of one event: its async handlers, and all plain ones together."""

    def __init__(self, parts: int, done: Callable[[bool], Any]) -> None:
        self._left = parts + 1
        self._handled = True
        self._done = done
        self._lock = threading.Lock()

    def part(self, handled: bool) -> None:
        with self._lock:
            self._handled &= handled
            self._left -= 1
            last = self._left == 0
        if last:
            self._done(self._handled)

    plain = part
