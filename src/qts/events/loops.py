"""Event loops for async handlers, each on a dedicated thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from qts import telemetry
from qts.events.event import Event

log = telemetry.logger("events")

Attempt = Callable[[Event], Awaitable[bool]]  # False: dead letter
Done = Callable[[bool], None]
T = TypeVar("T")


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
