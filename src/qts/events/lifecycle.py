"""Start and stop of an engine."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from qts import telemetry
from qts.domain import EventRefusedError
from qts.events.config import EventsConfig
from qts.events.event import Priority
from qts.events.handler_runtime import HandlerRuntime
from qts.events.lanes import Lanes
from qts.events.monitor import LaneMonitor
from qts.events.status import LANES

log = telemetry.logger("events")

_DRAINED_LANES = (int(Priority.P0), int(Priority.P1))
_YOUNG_OBJECTS = 10_000  # made since the last collection; Python's own default is 700


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
        self, config: EventsConfig, lanes: Lanes, runtime: HandlerRuntime, monitor: LaneMonitor
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
