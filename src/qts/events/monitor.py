"""Monitor of the lanes: pressure, degradation, slow handlers, failed threads, alerts.

Fail-safe codes raised here: FS095 P0 overflow, FS096 P0's lane failed (trading must be suspended),
FS097 P1's lane could not be restarted, FS098 a P0 event became a dead letter; guardrail GR090:
LEVEL_3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from qts import telemetry
from qts.events.catalogue import Event, Priority
from qts.events.handlers import EventHandler
from qts.events.payloads import NotificationSend
from qts.events.status import LANES, DegradationLevel, EngineStatus, LaneMetrics, Latency, Pressure

if TYPE_CHECKING:
    from qts.events.engine import EventEngine

log = telemetry.logger("events")

SLOW_HANDLER_NS = 5_000_000_000
_MAX_CHECK_S = 0.1  # a handler that overruns is relieved at least this often
_PERIOD_NS = 10_000_000_000  # of the recent latencies
_PERIODS = 60  # after which nothing is recent
_TEN_MINUTES_NS = _PERIODS * _PERIOD_NS
_SLA_EVENTS = 100  # in a window: enough to begin a breach
_SLA_END_EVENTS = 50  # fewer end it
# p50, p95, p99 and max in ms, from publishing to the last handler's return.
SLA: dict[str, dict[str, float]] = {
    "P0": {"p50": 2, "p95": 5, "p99": 10, "max": 20},
    "P1": {"p50": 10, "p95": 30, "p99": 50, "max": 100},
    "P2": {"p50": 100, "p95": 300, "p99": 500, "max": 1000},
}


class LaneAlert(msgspec.Struct, frozen=True):
    """Condition worth an operator's attention."""

    kind: Literal["pressure", "level", "slow", "fail_safe", "guardrail", "lane", "sla"]
    severity: Literal["info", "warning", "critical"]
    text: str
    code: str = ""  # FS…, GR…


def log_alert(alert: LaneAlert) -> None:
    write = {"info": log.info, "warning": log.warning, "critical": log.error}[alert.severity]
    write(alert.text, kind=alert.kind, code=alert.code)


class LaneMonitor:
    """Load checks on a dedicated thread every `check_interval_ms`, or on call of `check`.

    `on_alert` runs on the monitor's or a lane's thread and must be quick.
    """

    def __init__(self, engine: EventEngine, on_alert: Callable[[LaneAlert], None]) -> None:
        self._engine = engine
        self._on_alert = on_alert
        self._metrics = LaneMetrics()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._blocked = 0
        self._dropped = 0
        self._breached: dict[str, set[str]] = {"minute": set(), "ten_minutes": set()}
        self._breached_at: dict[str, int] = {}  # when each was last exceeded in the last minute
        self._rolled_ns = engine.clock.monotonic_ns()
        self._reported_slow: set[tuple[int, int]] = set()
        self._reported_isolated: set[str] = set()
        self._failed_workers: list[int] = []  # not yet restarted
        self.pressures: tuple[Pressure, ...] = (Pressure.NORMAL,) * 4

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="qts-events-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        self._log_placement()
        interval_s = self._engine.config.check_interval_ms / 1000
        due_s = 0.0
        while not self._stop.wait(min(interval_s, _MAX_CHECK_S)):
            due_s += min(interval_s, _MAX_CHECK_S)
            try:
                self._engine.lanes.relieve_overrun()
                if due_s >= interval_s:
                    due_s = 0.0
                    self.check()
            except Exception:
                log.error("lane check failed", exc_info=True)

    def _log_placement(self) -> None:
        """Log when P0's thread did not get its CPU or real-time priority within one interval."""
        config = self._engine.config
        self._stop.wait(config.check_interval_ms / 1000)
        pinned, realtime = self._engine.lanes.p0_placement()
        if config.p0_realtime and not realtime:
            log.info("P0 runs without real-time priority; see ulimit -r")
        if config.p0_cpu >= 0 and not pinned:
            log.warning("P0 not pinned to its CPU", cpu=config.p0_cpu)

    def check(self) -> None:
        with self._lock:
            self._check_load()
            self._check_drops()
            self._check_overflow()
            self._check_slow()
            self._check_faults()
            self._roll_latency()
            status = self._engine.status()
            self._check_sla(status)
            self._metrics.update(status)

    def update_metrics(self) -> None:
        with self._lock:  # a counter takes no status that is older than the last
            self._metrics.update(self._engine.status())

    def on_dead_letter(self, event: Event, handler: EventHandler, error: BaseException) -> None:
        if event.priority == Priority.P0:
            self._fail_safe(
                "FS098", f"{handler.name} failed on {event.event_type} {event.event_id}: {error}"
            )

    def process_died(self, lane: int, reason: str) -> None:
        self._alert("lane", "warning", f"{LANES[lane]}'s process {reason}; restarting it")

    def lane_not_started(self, lane: int, reason: str) -> None:
        text = f"{LANES[lane]}'s lane could not be restarted: {reason}"
        if lane == Priority.P1:
            self._fail_safe("FS097", text)
        else:
            self._alert("lane", "critical", text)

    # --- load -----------------------------------------------------------------------------------

    def _check_load(self) -> None:
        engine, before = self._engine, self._engine.level
        fills = [
            engine.lanes.counts(lane)["depth"] / config.queue_size
            for lane, config in enumerate(engine.config.lanes)
        ]
        result = engine.degradation.check(fills)
        self.pressures = result.pressures
        for lane, pressure in result.changed:
            configured = engine.config.lanes[lane].batch_size
            size = configured if pressure == Pressure.NORMAL else 2 * configured
            engine.lanes.set_batch(lane, size)
            engine.runtime.set_batch_size(lane, size)
            self._alert(
                "pressure",
                ("info", "warning", "critical")[pressure],
                f"{LANES[lane]} is {fills[lane]:.0%} full: {pressure.name}",
            )
        if result.level != before:
            self._level_changed(before, result.level)

    def _level_changed(self, before: DegradationLevel, after: DegradationLevel) -> None:
        self._engine.apply()
        text = f"degradation LEVEL_{int(before)} to LEVEL_{int(after)} {after.name}"
        self._alert("level", "warning" if after > before else "info", text)
        if self._engine.state == "running":
            payload = NotificationSend(text=text, code=f"LEVEL_{int(after)}")
            self._engine.try_publish(self._engine.new_event("NOTIFICATION_SEND", payload, "events"))
        if after == DegradationLevel.CRITICAL_ONLY:
            alert = LaneAlert("guardrail", "critical", "only P0 is handled", "GR090")
            self._raise(alert)

    def _check_drops(self) -> None:
        dropped = sum(self._engine.lanes.counts(lane)["dropped"] for lane in range(4))
        if dropped > self._dropped and (due := telemetry.log_every(1, "dropped")):
            top = sorted(
                (count, f"{name} {key}".strip())
                for name, keys in self._engine.dropped().items()
                for key, count in keys.items()
            )[-5:]
            text = ", ".join(f"{name} {count:,}" for count, name in reversed(top))
            log.warning("events dropped", count=dropped, most=text, **due)
        self._dropped = dropped

    def _check_overflow(self) -> None:
        counts = self._engine.lanes.counts(0)
        blocked = counts["blocked"] + counts["over"]
        if blocked > self._blocked:
            new, self._blocked = blocked - self._blocked, blocked
            self._fail_safe("FS095", f"P0 was full for {new} publisher(s)")

    # --- handlers and threads -------------------------------------------------------------------

    def _check_slow(self) -> None:
        engine = self._engine
        for what, event_type, handler, ns in engine.lanes.reports():
            name = engine.runtime.handler_name(event_type, handler)
            if what == "gil_stall":
                text = f"P0 waited {ns / 1e6:.1f} ms for the interpreter, held by {name}"
            else:
                text = f"{name} took {ns / 1e6:.1f} ms, more than its event type allows"
            if due := telemetry.log_every(1, f"{what} {name}"):
                self._alert("slow", "warning", text, due["suppressed"])
        running = {
            (worker, event_type): (handler, ns)
            for worker, event_type, handler, ns in engine.lanes.running()
            if ns > SLOW_HANDLER_NS
        }
        for key, (handler, ns) in running.items():
            if key not in self._reported_slow:
                name = engine.runtime.handler_name(key[1], handler)
                self._alert("slow", "warning", f"{name} has been running for {ns / 1e9:.0f} s")
        self._reported_slow = set(running)
        isolated = {
            name: ns for name, ns in engine.runtime.running_handlers() if ns > SLOW_HANDLER_NS
        }
        for name in isolated.keys() - self._reported_isolated:
            self._alert(
                "slow", "warning", f"{name} has been running for {isolated[name] / 1e9:.0f} s"
            )
        self._reported_isolated = set(isolated)

    def _check_faults(self) -> None:
        for worker, error in self._engine.lanes.faults():
            lane = self._engine.runtime.lane_of(worker)
            self._failed_workers.append(worker)
            if lane == 0:
                self._fail_safe("FS096", f"P0's lane failed; suspend trading: {error}")
            else:
                self._alert("lane", "warning", f"{LANES[lane]}'s thread failed: {error}")
        self._failed_workers = [each for each in self._failed_workers if not self._restart(each)]

    def _restart(self, worker: int) -> bool:
        """Restart a failed thread; return False when the next check must try again."""
        try:
            self._engine.lanes.restart_worker(worker)
        except RuntimeError as error:
            if telemetry.log_every(60, f"revive {worker}"):
                self.lane_not_started(self._engine.runtime.lane_of(worker), str(error))
            return False
        return True

    def _roll_latency(self) -> None:
        """End the periods that are over."""
        periods = (self._engine.clock.monotonic_ns() - self._rolled_ns) // _PERIOD_NS
        self._rolled_ns += periods * _PERIOD_NS
        for _ in range(min(periods, _PERIODS)):
            self._engine.lanes.roll_latency()

    def _check_sla(self, status: EngineStatus) -> None:
        """Alert once when a limit begins to be exceeded, and again when it is after it was not.

        The window is the last minute; for limits not exceeded in it for ten minutes, those ten.
        """
        for lane, limits in SLA.items():
            minute, ten_minutes = status.lanes[lane].minute, status.lanes[lane].ten_minutes
            for part, limit in limits.items():
                key = f"{lane} {part}"
                if self._breach_begins("minute", key, minute, limit):
                    self._alert_sla(key, getattr(minute, part), "minute", limit)
                if key in self._breached["minute"]:
                    self._breached_at[key] = self._rolled_ns
                alerted = self._rolled_ns - self._breached_at.get(key, -_TEN_MINUTES_NS)
                if (
                    self._breach_begins("ten_minutes", key, ten_minutes, limit)
                    and alerted >= _TEN_MINUTES_NS
                ):
                    self._alert_sla(key, getattr(ten_minutes, part), "ten minutes", limit)

    def _breach_begins(self, window: str, key: str, latency: Latency, limit: float) -> bool:
        breached = self._breached[window]
        above = getattr(latency, key.split()[1]) > limit
        if key not in breached and above and latency.count >= _SLA_EVENTS:
            breached.add(key)
            return True
        if not above or latency.count < _SLA_END_EVENTS:
            breached.discard(key)
        return False

    def _alert_sla(self, key: str, value: float, window: str, limit: float) -> None:
        text = f"{key} is {value:.1f} ms over the last {window}, above {limit:g} ms"
        self._alert("sla", "warning", text)

    # --- alerts ---------------------------------------------------------------------------------

    def _fail_safe(self, code: str, text: str) -> None:
        self._raise(LaneAlert("fail_safe", "critical", text, code))

    def _alert(
        self,
        kind: Literal["pressure", "level", "slow", "lane", "sla"],
        severity: str,
        text: str,
        suppressed: int = 0,
    ) -> None:
        more = f" ({suppressed} more suppressed)" if suppressed else ""
        self._raise(
            msgspec.convert({"kind": kind, "severity": severity, "text": text + more}, LaneAlert)
        )

    def _raise(self, alert: LaneAlert) -> None:
        try:
            self._on_alert(alert)
        except Exception:
            log.error("alert callback failed", code=alert.code, exc_info=True)
