"""The engine as its users hold it: as one account of a run, and from an event loop.

Several accounts share one engine:

    events of account A ─▶ source "orders kis"   ─▶ handlers of account A alone
    events of account B ─▶ source "orders upbit" ─▶ handlers of account B alone

Handlers that are registered with the engine itself take the events of all accounts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from qts import telemetry
from qts.domain import EventRefusedError
from qts.events.catalogue import Event, Priority
from qts.events.engine import EventEngine
from qts.events.lanes import TickWatcher
from qts.events.payloads import Payload

log = telemetry.logger("events")


class EventPort(Protocol):
    """What the parts of an account need of the lanes."""

    @property
    def publish(self) -> Callable[..., None]: ...
    @property
    def try_publish(self) -> Callable[[Event], bool]: ...
    def on(
        self, target: str, handler: Callable[[Event], object], *, essential: bool = False
    ) -> None: ...
    def attach_watcher(self, name: str, watcher: TickWatcher, field: str) -> None: ...
    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event: ...
    def wait_drained(self, seconds: float, *lanes: Priority) -> bool: ...


class AccountEvents:
    """EventPort of the account of that name; without a name, of the only account."""

    def __init__(self, engine: EventEngine, name: str = "") -> None:
        self._engine = engine
        self._suffix = f" {name}" if name else ""
        self.publish, self.try_publish = engine.publish, engine.try_publish
        self.attach_watcher, self.wait_drained = engine.attach_watcher, engine.wait_drained

    def source(self, part: str) -> str:
        """Return the source of events of a part of the account."""
        return part + self._suffix

    def on(
        self, target: str, handler: Callable[[Event], object], *, essential: bool = False
    ) -> None:
        """Call `handler` with the events of this account."""
        self._engine.on(target, self._own(handler), essential=essential)

    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event:
        return self._engine.new_event(name, payload, source + self._suffix)

    def _own(self, handler: Callable[[Event], object]) -> Callable[[Event], object]:
        suffix = self._suffix
        if not suffix:
            return handler

        def call(event: Event) -> object:
            return handler(event) if event.source.endswith(suffix) else None

        named: Any = call
        named.__wrapped__ = handler  # its name in alerts
        return call


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
