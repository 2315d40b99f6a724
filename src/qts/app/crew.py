"""The tasks of a run: none ends before the stop, and an error of one ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from qts import telemetry

log = telemetry.logger("app")


class Crew:
    """On one loop; `failed` is done when a task ended by an error."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    async def end(self, tasks: Iterable[asyncio.Task[None]] | None = None) -> None:
        """Cancel these, or all of them, and wait until they are gone."""
        ending = self._tasks if tasks is None else tasks
        waiting = [task for task in ending if not task.done()]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            log.error("a part ended by an error", part=task.get_name(), error=repr(error))
            self.failed.set_exception(error)
