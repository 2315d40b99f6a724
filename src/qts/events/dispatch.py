"""Handler calls: retries in place, dead letters, acknowledgement, and loops for async handlers.

The lanes call plain and batch handlers of P1 to P3 directly; those come here only when they fail.
P0 and types with an async handler go through `ManagedHandlers` for every event.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from qts import telemetry
from qts.domain import OperationError
from qts.events.catalogue import Event, EventType, Priority
from qts.events.handlers import EventHandler
from qts.events.lanes import Lanes

log = telemetry.logger("events")

Attempt = Callable[[Event], Awaitable[bool]]  # False: dead letter
Done = Callable[[bool], None]
OnDeadLetter = Callable[[Event, EventHandler, BaseException], None]
T = TypeVar("T")


class RetryCounter(Protocol):
    """Counter of retries."""

    def count_retry(self, lane: int, sequence: int, type: int) -> None: ...  # noqa: A002 - as the core has it


class DeadLetterSink(Protocol):
    """Receiver of dead letters."""

    def add(self, event: Event, handler: str, error: BaseException) -> object: ...


class HandlerRetry:
    """Retries of a failed handler, in the event's place, up to its `max_retries`."""

    def __init__(
        self, lanes: RetryCounter, dead_letters: DeadLetterSink, on_dead_letter: OnDeadLetter
    ) -> None:
        self._lanes = lanes
        self._dead_letters = dead_letters
        self._on_dead_letter = on_dead_letter

    def retry(
        self, event: Event, handler: EventHandler, error: BaseException, sequence: int, number: int
    ) -> bool:
        """Call a failed handler again; return False when the event became a dead letter."""
        for attempt in range(event.retry_count + 1, event.max_retries + 1):
            self._count(event, handler, error, attempt, sequence, number)
            try:
                handler.call(msgspec.structs.replace(event, retry_count=attempt))
            except BaseException as new:  # noqa: BLE001 - a handler may raise anything, also SystemExit
                error = new
            else:
                return True
        self.add_dead_letter(event, handler, error)
        return False

    async def call_async(
        self,
        event: Event,
        handler: EventHandler,
        timeout_s: float | None,
        stopping: Callable[[], bool],
    ) -> bool:
        """Call an async handler, with retries; return False when the event became a dead letter.

        A cancellation counts as a failure of the handler, unless the event loop is stopping.
        """
        error: BaseException | None = None
        for attempt in range(event.retry_count, event.max_retries + 1):
            try:
                async with asyncio.timeout(timeout_s):
                    await handler.call(msgspec.structs.replace(event, retry_count=attempt))
            except GeneratorExit:
                raise
            except BaseException as new:
                if isinstance(new, asyncio.CancelledError):
                    if stopping():
                        raise
                    _clear_cancellation()
                error = new
                log.warning("async handler failed", handler=handler.name, error=str(new))
            else:
                return True
        self.add_dead_letter(event, handler, error or OperationError("no attempt was allowed"))
        return False

    def retry_batch(
        self,
        events: Sequence[Event],
        handler: EventHandler,
        error: BaseException,
        sequences: Sequence[int],
        number: int,
    ) -> list[bool]:
        """Retry a whole batch, then each event alone; return whether each was handled."""
        retries = min(event.max_retries for event in events)
        for attempt in range(1, retries + 1):
            for event, sequence in zip(events, sequences, strict=True):
                self._count(event, handler, error, attempt, sequence, number)
            try:
                handler.call(
                    [msgspec.structs.replace(event, retry_count=attempt) for event in events]
                )
            except BaseException as new:  # noqa: BLE001 - a handler may raise anything, also SystemExit
                error = new
            else:
                return [True] * len(events)
        return [self._call_alone(event, handler) for event in events]

    def _call_alone(self, event: Event, handler: EventHandler) -> bool:
        try:
            handler.call([msgspec.structs.replace(event, retry_count=event.max_retries)])
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything, also SystemExit
            self.add_dead_letter(event, handler, error)
            return False
        return True

    def add_dead_letter(self, event: Event, handler: EventHandler, error: BaseException) -> None:
        self._dead_letters.add(event, handler.name, error)
        if due := telemetry.log_every(1, f"dead {handler.name}"):
            log.error(
                "handler failed; event dead-lettered",
                handler=handler.name,
                eventType=event.event_type,
                eventId=event.event_id,
                error=str(error),
                **due,
            )
        self._on_dead_letter(event, handler, error)

    def _count(
        self,
        event: Event,
        handler: EventHandler,
        error: BaseException,
        attempt: int,
        sequence: int,
        number: int,
    ) -> None:
        self._lanes.count_retry(event.priority, sequence, number)
        if due := telemetry.log_every(1, f"retry {handler.name}"):
            log.warning(
                "handler failed; retrying",
                handler=handler.name,
                eventType=event.event_type,
                attempt=attempt,
                error=str(error),
                **due,
            )


def _clear_cancellation() -> None:
    """Let the current task await again after a handler has cancelled it."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


class AckTracker:
    """Futures of events whose acknowledgement is awaited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[str, Future[None]] = {}

    def expect(self, event: Event) -> Future[None]:
        with self._lock:
            return self._futures.setdefault(event.event_id, Future())

    def discard(self, event: Event) -> None:
        with self._lock:
            self._futures.pop(event.event_id, None)

    def settle(self, event: Event, handled: bool) -> None:
        self._settle(event, "" if handled else "became a dead letter")

    def dropped(self, event: Event) -> None:
        self._settle(event, "was dropped at LEVEL_3")

    def _settle(self, event: Event, failure: str) -> None:
        with self._lock:
            future = self._futures.pop(event.event_id, None)
        if future is None:
            return
        if failure:
            future.set_exception(OperationError(f"{event.event_type} {event.event_id} {failure}"))
        else:
            future.set_result(None)


class ManagedHandlers:
    """All handlers of one type; the lane calls it with each event and its sequence number."""

    def __init__(
        self,
        event_type: EventType,
        handlers: Sequence[EventHandler],
        retry: HandlerRetry,
        acks: AckTracker,
        lanes: Lanes,
        number: int,
    ) -> None:
        self._type = event_type
        self._handlers = handlers
        self._retry = retry
        self._acks = acks
        self._lanes = lanes
        self._number = number
        self._queues: dict[int, SerialTaskQueue] = {}
        self.critical_only = False  # below P0, call essential handlers only

    @property
    def lane(self) -> Priority:
        return self._type.priority

    @property
    def type_name(self) -> str:
        return self._type.name

    def start(self, loop: LoopThread) -> None:
        """Create the queues of the async handlers on `loop`."""
        timeout_s = self._type.async_timeout_s
        self._queues = {}
        for number, each in enumerate(self._handlers):
            if each.kind == "async":
                self._queues[number] = SerialTaskQueue(
                    loop,
                    lambda event, h=each: self._retry.call_async(  # type: ignore[misc]
                        event, h, timeout_s, loop.is_stopping
                    ),
                )

    def __call__(self, event: Event, sequence: int) -> bool | Literal["dropped"] | None:
        """Return whether the event was handled; None while async handlers still run.

        "dropped": LEVEL_3 skips every handler.
        """
        skip = self.critical_only and self.lane != Priority.P0
        called = [(n, each) for n, each in enumerate(self._handlers) if each.essential or not skip]
        if not called:
            self._acks.dropped(event)
            return "dropped"
        queues = [self._queues[n] for n, each in called if each.kind == "async"]
        pending = _PendingCalls(
            len(queues) + 1, lambda handled: self._settle(event, sequence, handled)
        )
        for queue in queues:
            queue.put(event, pending.finish_one)
        handled = True
        for _, each in called:
            if each.kind == "plain":
                handled &= self._call(event, each, sequence)
            elif each.kind != "async":
                handled &= self._call_batch(event, each, sequence)
        if queues:
            pending.finish_one(handled)
            return None
        self._acks.settle(event, handled)
        return handled

    def _call(self, event: Event, handler: EventHandler, sequence: int) -> bool:
        try:
            handler.call(event)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything, also SystemExit
            return self._retry.retry(event, handler, error, sequence, self._number)
        return True

    def _call_batch(self, event: Event, handler: EventHandler, sequence: int) -> bool:
        """Call a batch handler with one event: types with async handlers form no batches."""
        try:
            handler.call([event])
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything, also SystemExit
            return self._retry.retry_batch([event], handler, error, [sequence], self._number)[0]
        return True

    def _settle(self, event: Event, sequence: int, handled: bool) -> None:
        self._lanes.settle(event.priority, sequence, not handled)
        self._acks.settle(event, handled)


class _PendingCalls:
    """Countdown over one event's calls: each async handler, and all plain ones together."""

    def __init__(self, count: int, done: Callable[[bool], Any]) -> None:
        self._left = count
        self._handled = True
        self._done = done
        self._lock = threading.Lock()

    def finish_one(self, handled: bool) -> None:
        with self._lock:
            self._handled &= handled
            self._left -= 1
            last = self._left == 0
        if last:
            self._done(self._handled)


class LoopThread:
    """Thread that runs an event loop; stop it from another thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *args: object) -> None:
        self._loop.call_soon_threadsafe(function, *args)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def is_stopping(self) -> bool:
        return self._stopping

    def stop(self, seconds: float) -> bool:
        """Cancel running tasks; return whether the thread ended in time."""
        self._stopping = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopping:
                try:
                    self._loop.run_forever()
                except BaseException:  # SystemExit in a task that a handler made
                    log.error("task of an async handler failed", exc_info=True)
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()


class SerialTaskQueue:
    """Events of one async handler, handled one at a time in the order of arrival.

    The lane limits how many are here; the others wait in the lane.
    """

    def __init__(self, loop: LoopThread, attempt: Attempt) -> None:
        self._loop = loop
        self._attempt = attempt
        self._waiting: deque[tuple[Event, Done]] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, event: Event, done: Done) -> None:
        self._loop.call(self._add, event, done)

    def _add(self, event: Event, done: Done) -> None:
        self._waiting.append((event, done))
        self._start()

    def _start(self) -> None:
        if self._task is None and self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        while self._waiting:
            event, done = self._waiting.popleft()
            done(await self._attempt(event))

    def _ended(self, _task: asyncio.Task[None]) -> None:
        """Start again when a handler has cancelled the task before it was done."""
        self._task = None
        if not self._loop.is_stopping():
            self._start()
