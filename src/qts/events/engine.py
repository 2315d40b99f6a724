"""Event engine: publishers, four lanes and their handlers.

    created ──start──▶ running ──stop──▶ stopped
                          │ ▲
                    pause │ │ resume, lane by lane

Events published before the start wait in their lanes. A stop refuses new events, drains P0 and P1,
ends the threads after their current event and reports what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import Clock, EventRefusedError, LaneFullError, SystemClock
from qts.events import lanes as native
from qts.events.catalogue import Catalogue
from qts.events.config import EventsConfig
from qts.events.dead_letters import DeadLetterBuffer, DeadLetterStore, reset_retries
from qts.events.degradation import DegradationController, DegradationLevel
from qts.events.dispatch import HandlerRetry
from qts.events.event import Event, Priority
from qts.events.handler_runtime import HandlerRuntime
from qts.events.handlers import Async, EventHandler, Plain, as_handler
from qts.events.lifecycle import EngineLifecycle, StopReport
from qts.events.monitor import LaneAlert, LaneMonitor, log_alert
from qts.events.status import EngineStatus, read_status


class EventEngine:
    """Engine of the four lanes; any thread may publish, handlers are registered before start."""

    def __init__(
        self,
        config: EventsConfig | None = None,
        catalogue: Catalogue | None = None,
        clock: Clock | None = None,
        on_alert: Callable[[LaneAlert], None] = log_alert,
    ) -> None:
        self.config = config or EventsConfig()
        self.catalogue = catalogue or Catalogue()
        self.clock = clock or SystemClock()
        self.dead_letters = DeadLetterBuffer(self.config.dead_letters, self.clock)
        self.lanes = native.build_lanes(self.config, self.catalogue)
        self._new_event = native.event_factory(self.catalogue, self.clock)
        self.degradation = DegradationController(self.config)
        self._monitor = LaneMonitor(self, on_alert)
        retry = HandlerRetry(self.lanes, self.dead_letters, self._monitor.on_dead_letter)
        self.runtime = HandlerRuntime(self.config, self.catalogue, self.lanes, self, retry)
        self._lifecycle = EngineLifecycle(self.config, self.lanes, self.runtime, self._monitor)
        self._paused_manually: set[int] = set()
        self.lanes.set_callbacks(
            native.refusal_callback(self.catalogue),
            self.catalogue.check,
            self.runtime.failed,
            self.runtime.failed_batch,
        )
        # Bound directly: a Python method around them would double the cost of a call.
        self.publish: Callable[..., None] = self.lanes.publish
        self.try_publish: Callable[[Event], bool] = self.lanes.try_publish
        self.publish_many: Callable[..., int] = self.lanes.publish_many

    # --- handlers -------------------------------------------------------------------------------

    def on(
        self,
        target: str | Priority,
        handler: Plain | Async | EventHandler,
        *,
        essential: bool = False,
    ) -> None:
        """Call `handler` for a type (PRICE_TICK), a pattern (FILL_*) or a whole lane.

        In LEVEL_3 only essential handlers and those of P0 run.
        """
        if self.state != "created":
            raise EventRefusedError(f"engine is {self.state}; register handlers before the start")
        self.runtime.add(target, as_handler(handler, essential))

    def attach_watcher(self, name: str, watcher: native.TickWatcher, field: str) -> None:
        """Pass the key and one number of every event of a type to a native watcher.

        The watcher runs on the publisher's thread, before any handler. Events that it publishes are
        in their lane before publish() returns, so no thread that holds the GIL can delay them.
        """
        if self.state != "created":
            raise EventRefusedError(f"engine is {self.state}; attach watchers before the start")
        number = list(self.catalogue).index(self.catalogue[name])
        watcher.attach(self._new_event, self.lanes.publish)
        self.lanes.attach_watcher(number, watcher, field)

    # --- publishing -----------------------------------------------------------------------------

    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event:
        """Create an event of a type with the current time."""
        return self._new_event(name, payload, source)

    def emit(self, name: str, payload: msgspec.Struct, source: str = "") -> Event:
        event = self.new_event(name, payload, source)
        self.publish(event)
        return event

    async def publish_async(self, event: Event, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as publish
        """Publish without blocking the event loop while the lane is full."""
        deadline = None if timeout is None else self.clock.monotonic_ns() + timeout * 1e9
        while not self.try_publish(event):
            left = 0.05
            if deadline is not None:
                left = min(left, (deadline - self.clock.monotonic_ns()) / 1e9)
            if left <= 0:
                raise LaneFullError(
                    f"lane P{event.priority} is full; {event.event_type} not published"
                )
            await asyncio.to_thread(self.lanes.wait_for_capacity, event.priority, left)

    def publish_for_ack(self, event: Event) -> Future[None]:
        """Publish; return a future that is done when every handler is, and fails when one fails."""
        if not self.catalogue[event.event_type].requires_ack:
            raise EventRefusedError(f"events of type {event.event_type} are not acknowledged")
        future = self.runtime.acks.expect(event)
        try:
            self.publish(event)
        except BaseException:
            self.runtime.acks.discard(event)
            raise
        return future

    # --- start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        """Start threads and processes."""
        self._lifecycle.start(self.apply)

    def stop(self) -> StopReport:
        """Drain P0 and P1, end the threads, report the rest; a second call returns the same."""
        return self._lifecycle.stop()

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

    # --- load -----------------------------------------------------------------------------------

    def pause(self, lane: Priority) -> None:
        """Stop handling a lane at its next event; published events wait."""
        if lane == Priority.P0:
            raise EventRefusedError("P0 cannot be paused")
        self._paused_manually.add(int(lane))
        self.apply()

    def resume(self, lane: Priority) -> None:
        self._paused_manually.discard(int(lane))
        self.apply()

    def degrade(self, level: DegradationLevel | None) -> None:
        """Set the level manually; None returns to the level that the load requires."""
        self.degradation.manual_level = level
        self.check()

    def check(self) -> None:
        """Run one load check; the monitor does so every `check_interval_ms`."""
        self._monitor.check()

    def apply(self) -> None:
        """Pause the lanes that the operator or the degradation level pauses."""
        level = self.degradation.level
        by_level = {3} if level >= DegradationLevel.P3_PAUSED else set()
        if level >= DegradationLevel.P2_P3_PAUSED:
            by_level.add(2)
        paused = [lane in by_level or lane in self._paused_manually for lane in range(4)]
        for lane in (1, 2, 3):
            self.lanes.pause(lane, paused[lane])
        self.lanes.set_critical_only(level == DegradationLevel.CRITICAL_ONLY)
        self.runtime.apply_level(paused, level == DegradationLevel.CRITICAL_ONLY)

    # --- status ---------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._lifecycle.state

    @property
    def level(self) -> DegradationLevel:
        return self.degradation.level

    def status(self) -> EngineStatus:
        return read_status(
            self.lanes,
            self.config,
            self._monitor.pressures,
            self.degradation.level,
            self.dead_letters.count,
        )

    def wait_drained(self, seconds: float, *lanes: Priority) -> bool:
        """Wait until these lanes (default: all) are empty and their handlers done."""
        return self.lanes.drained([int(lane) for lane in lanes or tuple(Priority)], seconds)

    def dropped(self) -> dict[str, dict[str, int]]:
        """Return counts of dropped events by type, then by key (the symbol)."""
        counts: dict[str, dict[str, int]] = {}
        names = [each.name for each in self.catalogue]
        for number, key, count in self.lanes.drops():
            counts.setdefault(names[number], {})[key] = count
        return counts

    def pids(self) -> dict[str, int]:
        """Return the process id of each isolated lane, 0 while it restarts."""
        return {f"P{each.lane}": each.pid for each in self.runtime.processes}

    def audit(self) -> npt.NDArray[np.void]:
        """Return the audit records since the last call, as `AUDIT_DTYPE`."""
        return np.frombuffer(self.lanes.audit(), dtype=native.AUDIT_DTYPE)

    # --- dead letters ---------------------------------------------------------------------------

    def replay(self, number: int) -> Event:
        """Publish a buffered dead letter again."""
        letter = self.dead_letters.show(number)
        event = reset_retries(letter)
        self.publish(event)
        self.dead_letters.remove(number)
        return event

    async def persist_dead_letters(self, store: DeadLetterStore, interval_s: float = 0.2) -> None:
        """Move dead letters to the store and publish requested replays, until cancelled."""
        await self.dead_letters.persist(store, interval_s, self.publish_async)
