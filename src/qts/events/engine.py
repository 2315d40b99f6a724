"""The engine: publishers on one side, handlers on the other, four lanes between them.

    made ──start──▶ running ──stop──▶ stopped
                       │ ▲
                 pause │ │ resume, lane by lane

Until it is started it takes events and handlers; they are handled once it runs. A stop refuses new
events, drains P0 and P1, ends the threads after their current event and reports what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from qts.domain import Clock, EventRefusedError, LaneFullError, SystemClock
from qts.events import lanes as native
from qts.events import status as figures
from qts.events.catalogue import Catalogue
from qts.events.config import EventsConfig
from qts.events.dead_letters import DeadLetterBuffer, DeadLetterStore, reset_retries
from qts.events.degradation import DegradationController, DegradationLevel
from qts.events.dispatch import HandlerRetry
from qts.events.event import Event, Priority
from qts.events.handler_runtime import HandlerRuntime
from qts.events.handlers import Async, EventHandler, Plain, as_handler
from qts.events.lifecycle import EngineLifecycle, StopReport
from qts.events.monitor import AlertHooks, LaneMonitor
from qts.events.payloads import Payload


class EventEngine:
    """P0 to P3. Any thread may publish; handlers are registered before the start."""

    def __init__(
        self,
        config: EventsConfig | None = None,
        catalogue: Catalogue | None = None,
        clock: Clock | None = None,
        hooks: AlertHooks | None = None,
    ) -> None:
        self.config = config or EventsConfig()
        self.catalogue = catalogue or Catalogue()
        self._clock = clock or SystemClock()
        self.dead_letters = DeadLetterBuffer(self.config.dead_letters, self._clock)
        self._lanes = native.build_lanes(self.config, self.catalogue)
        self._make = native.event_factory(self.catalogue, self._clock)
        self._load = DegradationController(self.config)
        self._monitor = LaneMonitor(self, hooks or AlertHooks())
        retry = HandlerRetry(self._lanes, self.dead_letters, self._monitor.gave_up)
        self._wiring = HandlerRuntime(self.config, self.catalogue, self._lanes, self, retry)
        self._life = EngineLifecycle(self.config, self._lanes, self._wiring, self._monitor)
        self._paused_by_hand: set[int] = set()
        self._lanes.set_callbacks(
            native.refusal(self.catalogue),
            self.catalogue.check,
            self._wiring.failed,
            self._wiring.failed_batch,
        )
        # The lanes' own: a method around it would cost as much again.
        self.publish: Callable[..., None] = self._lanes.publish
        self.try_publish: Callable[[Event], bool] = self._lanes.try_publish
        self.publish_many: Callable[..., int] = self._lanes.publish_many

    # --- handlers -------------------------------------------------------------------------------

    def on(
        self,
        what: str | Priority,
        handler: Plain | Async | EventHandler,
        *,
        essential: bool = False,
    ) -> None:
        """Call `handler` for a type (PRICE_TICK), a pattern (FILL_*) or a whole lane.

        An essential handler goes on in LEVEL_3, when only the critical is handled.
        """
        if self.state != "made":
            raise EventRefusedError(f"handlers are registered before the start; it is {self.state}")
        self._wiring.add(what, as_handler(handler, essential))

    def attach_watcher(self, name: str, watcher: native.TickWatch, field: str) -> None:
        """Show every event of a type to a native watcher while it is being published.

        It sees the key and one number of the payload, before any handler and on the publisher's
        own thread, and what it publishes is in its lane before publish returns: nobody who holds
        the interpreter can delay what it decides.
        """
        if self.state != "made":
            raise EventRefusedError(f"a watcher is set before the start; it is {self.state}")
        number = list(self.catalogue).index(self.catalogue[name])
        watcher.attach(self._make, self._lanes.publish)
        self._lanes.watch(number, watcher, field)

    # --- publishing -----------------------------------------------------------------------------

    def new_event(self, name: str, payload: Payload, source: str = "") -> Event:
        """An event of this type, now."""
        return self._make(name, payload, source)

    def emit(self, name: str, payload: Payload, source: str = "") -> Event:
        event = self.new_event(name, payload, source)
        self.publish(event)
        return event

    async def publish_async(self, event: Event, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as publish
        """As `publish`, without blocking the loop while the lane is full."""
        end = None if timeout is None else self._clock.monotonic_ns() + timeout * 1e9
        while not self.try_publish(event):
            left = 0.05 if end is None else min(0.05, (end - self._clock.monotonic_ns()) / 1e9)
            if left <= 0:
                raise LaneFullError(f"{event.event_type} found no room in lane P{event.priority}")
            await asyncio.to_thread(self._lanes.wait_for_room, event.priority, left)

    def publish_for_ack(self, event: Event) -> Future[None]:
        """Publish; the future is done when every handler has, and fails when one gave up."""
        if not self.catalogue[event.event_type].requires_ack:
            raise EventRefusedError(f"events of type {event.event_type} are not acknowledged")
        future = self._wiring.expect(event)
        try:
            self.publish(event)
        except BaseException:
            self._wiring.forget(event)
            raise
        return future

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start threads and processes; those handle what waits."""
        self._life.start(self.apply)

    def stop(self) -> StopReport:
        """Drain P0 and P1, end the threads, report the rest. A second stop reports the same."""
        return self._life.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- steering -------------------------------------------------------------------------------

    def pause(self, lane: Priority) -> None:
        """Stop a lane at its next event; what is published to it waits."""
        if lane == Priority.P0:
            raise EventRefusedError("P0 is never paused")
        self._paused_by_hand.add(int(lane))
        self.apply()

    def resume(self, lane: Priority) -> None:
        self._paused_by_hand.discard(int(lane))
        self.apply()

    def degrade(self, level: DegradationLevel | None) -> None:
        """Hold a level by hand; None lets the load decide again."""
        self._load.by_hand = level
        self.check()

    def check(self) -> None:
        """Look at the load and act on it; runs every `check_interval_ms` by itself."""
        self._monitor.check()

    def apply(self) -> None:
        """Pause what a person or the level of degradation wants paused."""
        level = self._load.level
        by_level = {3} if level >= DegradationLevel.P3_PAUSED else set()
        if level >= DegradationLevel.P2_P3_PAUSED:
            by_level.add(2)
        paused = [lane in by_level or lane in self._paused_by_hand for lane in range(4)]
        for lane in (1, 2, 3):
            self._lanes.pause(lane, paused[lane])
        self._lanes.set_critical_only(level == DegradationLevel.CRITICAL_ONLY)
        self._wiring.apply_level(paused, level == DegradationLevel.CRITICAL_ONLY)

    # --- looking --------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._life.state

    @property
    def level(self) -> DegradationLevel:
        return self._load.level

    @property
    def lanes(self) -> native.Lanes:
        """The native lanes, for tests and tools that step them by hand."""
        return self._lanes

    @property
    def wiring(self) -> HandlerRuntime:
        """Who is called, and where; for the monitor."""
        return self._wiring

    @property
    def load(self) -> DegradationController:
        return self._load

    def status(self) -> figures.EngineStatus:
        return figures.read(
            self._lanes,
            self.config,
            self._monitor.pressures,
            self._load.level,
            self.dead_letters.count,
        )

    def wait_drained(self, seconds: float, *lanes: Priority) -> bool:
        """Wait until these lanes (all, when none is named) are empty and their handlers done."""
        return self._lanes.drained([int(lane) for lane in lanes or tuple(Priority)], seconds)

    def dropped(self) -> dict[str, dict[str, int]]:
        """What was dropped for want of room: counts by type, then by key (the symbol)."""
        found: dict[str, dict[str, int]] = {}
        names = [each.name for each in self.catalogue]
        for number, key, count in self._lanes.drops():
            found.setdefault(names[number], {})[key] = count
        return found

    def pids(self) -> dict[str, int]:
        """The process of each lane that has one; 0 while it is started again."""
        return {f"P{each.lane}": each.pid for each in self._wiring.processes}

    def audit(self) -> npt.NDArray[np.void]:
        """What became of every event since the last call; see `events.AUDIT`."""
        return np.frombuffer(self._lanes.audit(), dtype=native.AUDIT_DTYPE)

    # --- dead letters ---------------------------------------------------------------------------

    def replay(self, number: int) -> Event:
        """Publish a dead letter again."""
        letter = self.dead_letters.show(number)
        event = reset_retries(letter)
        self.publish(event)
        self.dead_letters.remove(number)
        return event

    async def replay_stored(self, store: DeadLetterStore, number: int) -> Event:
        """Publish a dead letter of the store again."""
        event = reset_retries(await store.show(number))
        await self.publish_async(event)
        await store.replayed(number)
        return event

    async def persist_dead_letters(self, store: DeadLetterStore, every_s: float = 0.2) -> None:
        """Move dead letters into the store and publish those asked for there, until cancelled."""
        await self.dead_letters.keep(store, every_s, self.publish_async)
