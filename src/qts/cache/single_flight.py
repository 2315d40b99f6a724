"""One flight per missing key: callers that miss the same thing wait for one load of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SingleFlight:
    """For one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.shared = 0
        """How often a caller found somebody loading already."""

    async def run(self, key: str, load: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The load of this key, begun if need be; who gives up does not end it for the rest."""
        return await asyncio.shield(self.begin(key, load))

    def begin(self, key: str, load: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        flight = self._under_way.get(key)
        if flight is not None:
            self.shared += 1
            return flight
        flight = self.start(load())
        self._under_way[key] = flight
        flight.add_done_callback(lambda ended: self._landed(key, ended))
        return flight

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work of nobody in particular, kept until it ends; a failure of it is its own affair."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def forget(self, key: str) -> None:
        """Whoever comes from now on needs a load that begins now."""
        self._under_way.pop(key, None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _landed(self, key: str, ended: asyncio.Task[Any]) -> None:
        if self._under_way.get(key) is ended:
            del self._under_way[key]

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # asked for, so that asyncio does not report what waiters were told
