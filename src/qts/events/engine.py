"""Event engine: publishers, four lanes and their handlers.

    created ──start──▶ running ──stop──▶ stopped
                          │ ▲
                    pause │ │ resume, lane by lane

Events published before the start wait in their lanes. A stop refuses new events, drains P0 and P1,
ends the threads after their current event and reports what is left.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from qts import telemetry
from qts.domain import Clock, EventRefusedError, LaneFullError, SystemClock
from qts.events import lanes as native
from qts.events.catalogue import Catalogue, Event, Priority
from qts.events.config import EventsConfig
from qts.events.dead_letters import DeadLetterBuffer, DeadLetterStore, reset_retries
from qts.events.dispatch import HandlerRetry
from qts.events.handler_runtime import HandlerRuntime
from qts.events.handlers import Async, EventHandler, Plain, as_handler
from qts.events.monitor import LaneAlert, LaneMonitor, log_alert
from qts.events.status import (
    LANES,
    DegradationController,
    DegradationLevel,
    EngineStatus,
    read_status,
)

log = telemetry.logger("events")

_DRAINED_LANES = (int(Priority.P0), int(Priority.P1))
_YOUNG_OBJECTS = 10_000  # made since the last collection; Python's own default is 700


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


class StopReport(msgspec.Struct, frozen=True):
    """Result of a stop."""

    drained: bool  # P0 and P1 are empty
    ended: bool  # every handler has returned
    unhandled: dict[str, int]  # events left in each lane


class InterpreterSettings(NamedTuple):
    """What the interpreter did before the first of the engines that run in it."""

    switch_interval_s: float
    thresholds: tuple[int, int, int]

    @classmethod
    def apply(cls, switch_interval_s: float) -> InterpreterSettings:
        """Switch threads often, and keep what is loaded out of garbage collections.

        A full collection stops every thread for 60 to 110 ms: it walks each module, class and
        compiled function. Frozen, they are skipped; what is made from now on is still collected.
        """
        before = _running[0] if _running else cls(sys.getswitchinterval(), gc.get_threshold())
        _running.append(before)
        sys.setswitchinterval(switch_interval_s)
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, *before.thresholds[1:])
        return before

    def restore(self) -> None:
        """Do what the interpreter did before, once no engine runs in it any more."""
        _running.pop()
        if not _running:
            sys.setswitchinterval(self.switch_interval_s)
            gc.unfreeze()
            gc.set_threshold(*self.thresholds)


_running: list[InterpreterSettings] = []  # one for each engine; engines end in any order


class EngineLifecycle:
    """State of an engine, which starts once and stops once."""

    def __init__(
        self,
        config: EventsConfig,
        lanes: native.Lanes,
        runtime: HandlerRuntime,
        monitor: LaneMonitor,
    ) -> None:
        self._config = config
        self._lanes = lanes
        self._runtime = runtime
        self._monitor = monitor
        self._drained, self._ended = False, True
        self.state = "created"

    def start(self, apply_pauses: Callable[[], None]) -> None:
        """Start processes, threads and monitor; `apply_pauses` runs before events are fed."""
        if self.state != "created":
            raise EventRefusedError(f"engine is {self.state}; it can be started only once")
        self._runtime.start(self._monitor.process_died, self._monitor.lane_not_started)
        self._interpreter = InterpreterSettings.apply(self._config.switch_interval_ms / 1000)
        self._runtime.add_workers()
        cpu = self._config.p0_cpu if self._config.p0_cpu >= 0 else None
        self._lanes.start(cpu, self._config.p0_realtime)
        self.state = "running"
        apply_pauses()
        self._runtime.feed()
        self._monitor.start()
        atexit.register(self.stop)

    def stop(self) -> StopReport:
        if self._lanes.in_handler():
            raise EventRefusedError(
                "a handler cannot stop the engine that runs it; stop it from another thread"
            )
        if self.state == "running":
            self._stop()
        elif self.state == "created":
            self._lanes.open(False)
            self.state = "stopped"
        return StopReport(self._drained, self._ended, self._unhandled())

    def _stop(self) -> None:
        self.state = "stopping"
        self._lanes.open(False)
        for lane in _DRAINED_LANES:
            self._lanes.pause(lane, False)
            self._runtime.resume(lane)
        self._drained = self._lanes.drained(_DRAINED_LANES, self._config.stop_timeout_s)
        self._monitor.stop()
        self._ended = self._lanes.halt(1.0)
        self._ended &= self._runtime.stop()
        self._interpreter.restore()
        self._lanes.release_handled()
        atexit.unregister(self.stop)
        self.state = "stopped"
        self._monitor.update_metrics()
        if not self._ended:
            log.error("handler did not return; thread abandoned, process killed")
        if unhandled := self._unhandled():
            log.warning("engine stopped with unhandled events", **unhandled)

    def _unhandled(self) -> dict[str, int]:
        return {
            name: waiting
            for number, name in enumerate(LANES)
            if (waiting := self._lanes.counts(number)["waiting"])
        }
