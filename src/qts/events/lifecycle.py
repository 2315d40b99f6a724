"""The life of an engine: made, running, stopped."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable

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

_FIRST = (int(Priority.P0), int(Priority.P1))  # what a stop drains


class StopReport(msgspec.Struct, frozen=True):
    """How a stop went."""

    drained: bool  # P0 and P1 are empty
    ended: bool  # every handler has returned
    rest: dict[str, int]  # events that were not handled any more, by lane


class EngineLifecycle:
    """Starts once and stops once; asked again, it answers the same."""

    def __init__(
        self, config: EventsConfig, lanes: Lanes, wiring: HandlerRuntime, monitor: LaneMonitor
    ) -> None:
        self._config = config
        self._lanes = lanes
        self._wiring = wiring
        self._monitor = monitor
        self._drained, self._ended = False, True
        self.state = "made"

    def start(self, steer: Callable[[], None]) -> None:
        """`steer` pauses what is to begin paused."""
        if self.state != "made":
            raise EventRefusedError(f"an engine is started once; this one is {self.state}")
        self._wiring.start(self._monitor.process_died, self._monitor.process_not_started)
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(self._config.switch_interval_ms / 1000)
        self._wiring.add_workers()
        cpu = self._config.p0_cpu if self._config.p0_cpu >= 0 else None
        self._lanes.start(cpu, self._config.p0_realtime)
        self.state = "running"
        steer()
        self._wiring.feed()
        self._monitor.start()
        atexit.register(self.stop)

    def stop(self) -> StopReport:
        if self._lanes.inside():
            raise EventRefusedError(
                "a handler cannot stop the engine that runs it; ask another thread"
            )
        if self.state == "running":
            self._stop()
        elif self.state == "made":
            self._lanes.open(False)
            self.state = "stopped"
        return StopReport(self._drained, self._ended, self._rest())

    def _stop(self) -> None:
        self.state = "stopping"
        self._lanes.open(False)
        for lane in _FIRST:
            self._lanes.pause(lane, False)
            self._wiring.resume(lane)
        self._drained = self._lanes.drained(_FIRST, self._config.stop_timeout_s)
        self._monitor.stop()
        self._ended = self._lanes.halt(1.0)
        self._ended &= self._wiring.stop()
        sys.setswitchinterval(self._switch_interval)
        self._lanes.clear()
        atexit.unregister(self.stop)
        self.state = "stopped"
        self._monitor.tell()
        if not self._ended:
            log.error("a handler did not return; its thread is left behind, its process killed")
        if rest := self._rest():
            log.warning("stopped with events that were not handled", **rest)

    def _rest(self) -> dict[str, int]:
        return {
            name: waiting
            for number, name in enumerate(LANES)
            if (waiting := self._lanes.counts(number)["waiting"])
        }
