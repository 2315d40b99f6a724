"""Single flight: callers that miss the same key wait for one load of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SingleFlight:
    """Loads in flight, for one event loop."""

    def __init__(self) -> None:
        self._in_flight: dict[str, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.shared = 0
        """Callers that joined a load in flight."""

    async def run(self, key: str, load: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the load of the key, started if needed; cancelling a caller does not stop it."""
        return await asyncio.shield(self.start(key, load))

    def start(self, key: str, load: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        task = self._in_flight.get(key)
        if task is not None:
            self.shared += 1
            return task
        task = self.spawn(load())
        self._in_flight[key] = task
        task.add_done_callback(lambda task: self._on_loaded(key, task))
        return task

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in a task that is kept until it ends; its error is not logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def detach(self, key: str) -> None:
        """Let later callers start a new load."""
        self._in_flight.pop(key, None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _on_loaded(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._in_flight.get(key) is task:
            del self._in_flight[key]

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
