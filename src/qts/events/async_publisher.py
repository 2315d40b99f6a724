"""Publishing from an event loop: without blocking it, and each lane in the order of the calls."""

from __future__ import annotations

import asyncio
from collections import deque

from qts import telemetry
from qts.domain import EventRefusedError
from qts.events.engine import EventEngine
from qts.events.event import Event, Priority
from qts.events.payloads import Payload

log = telemetry.logger("events")


class AsyncPublisher:
    """Publisher for one event loop; events of a full lane wait here, in their order.

    After `close` nothing more is published.
    """

    def __init__(self, engine: EventEngine, source: str) -> None:
        self._engine = engine
        self._source = source
        self._waiting: dict[int, deque[Event]] = {int(lane): deque() for lane in Priority}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.is_closed = False

    def emit(self, name: str, payload: Payload) -> None:
        """Publish, or queue the event behind those that wait for its lane."""
        if self.is_closed:
            return
        event = self._engine.new_event(name, payload, self._source)
        waiting = self._waiting[event.priority]
        if waiting or not self._engine.try_publish(event):
            waiting.append(event)
            if event.priority not in self._tasks:
                task = asyncio.ensure_future(self._publish_waiting(event.priority))
                self._tasks[event.priority] = task

    async def close(self, seconds: float) -> bool:
        """Refuse further events; return whether all that wait were published within `seconds`."""
        self.is_closed = True
        if tasks := set(self._tasks.values()):
            _, left = await asyncio.wait(tasks, timeout=seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
        return not any(self._waiting.values())

    async def _publish_waiting(self, lane: int) -> None:
        waiting = self._waiting[lane]
        try:
            while waiting:
                await self._engine.publish_async(waiting[0])
                waiting.popleft()
        except EventRefusedError as error:  # the engine was stopped
            log.error("events not published", lane=f"P{lane}", count=len(waiting), error=str(error))
        finally:
            del self._tasks[lane]
