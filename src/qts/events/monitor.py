"""The watch over the lanes: pressure, degradation, slow handlers, failed threads, alerts.

Fail-safe codes raised here: FS095 P0 overflow, FS096 P0's lane failed (trading must be suspended),
FS097 P1's lane could not be started again, FS098 a P0 handler gave up; guardrail GR090: LEVEL_3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from qts import telemetry
from qts.events.degradation import DegradationLevel, Pressure
from qts.events.event import Event, Priority
from qts.events.handlers import EventHandler
from qts.events.payloads import NotificationSend
from qts.events.status import LANES, LaneMetrics

if TYPE_CHECKING:
    from qts.events.engine import EventEngine

log = telemetry.logger("events")

P3_LIMIT_NS = 5_000_000_000
# p50, p95, p99 and max in ms, from publishing to the last handler's return.
SLA: dict[str, dict[str, float]] = {
    "P0": {"p50": 2, "p95": 5, "p99": 10, "max": 20},
    "P1": {"p50": 10, "p95": 30, "p99": 50, "max": 100},
    "P2": {"p50": 100, "p95": 300, "p99": 500, "max": 1000},
}


class LaneAlert(msgspec.Struct, frozen=True):
    """Something a person should know."""

    kind: Literal["pressure", "level", "slow", "fail_safe", "guardrail", "lane", "sla"]
    severity: Literal["info", "warning", "critical"]
    text: str
    code: str = ""  # FS…, GR…


def _ignore(_alert: LaneAlert) -> None:
    """The alert stands in the log in any case."""


class AlertHooks(msgspec.Struct, frozen=True):
    """Who is told; called on the monitor's or a lane's thread, so: quickly."""

    alert: Callable[[LaneAlert], None] = _ignore
    fail_safe: Callable[[LaneAlert], None] = _ignore  # FS095 to FS098
    guardrail: Callable[[LaneAlert], None] = _ignore  # GR090


class LaneMonitor:
    """Checks by hand, or every `check_interval_ms` on a thread of its own."""

    def __init__(self, engine: EventEngine, hooks: AlertHooks) -> None:
        self._engine = engine
        self._hooks = hooks
        self._metrics = LaneMetrics()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._blocked = 0
        self._dropped = 0
        self._breached: set[str] = set()
        self._told_running: set[tuple[int, int]] = set()
        self._told_apart: set[str] = set()
        self._lost: list[int] = []  # threads that could not be started again
        self.pressures: tuple[Pressure, ...] = (Pressure.NORMAL,) * 4

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="qts-events-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        self._say_place()
        while not self._stop.wait(self._engine.config.check_interval_ms / 1000):
            try:
                self.check()
            except Exception:
                log.error("a check of the lanes failed", exc_info=True)

    def _say_place(self) -> None:
        """P0's thread asks for its place as it begins; by the first look it has it or not."""
        config = self._engine.config
        self._stop.wait(config.check_interval_ms / 1000)
        pinned, realtime = self._engine.lanes.placed()
        if config.p0_realtime and not realtime:
            log.info("no real-time priority for P0: other programs can delay it; see ulimit -r")
        if config.p0_cpu >= 0 and not pinned:
            log.warning("P0 could not have its CPU", cpu=config.p0_cpu)

    def check(self) -> None:
        with self._lock:
            self._check_load()
            self._check_drops()
            self._check_overflow()
            self._check_slow()
            self._check_faults()
            self._check_sla()
        self.tell()

    def tell(self) -> None:
        self._metrics.tell(self._engine.status())

    def gave_up(self, event: Event, handler: EventHandler, error: BaseException) -> None:
        if event.priority == Priority.P0:
            self._fail_safe(
                "FS098", f"{handler.name} gave up on {event.event_type} {event.event_id}: {error}"
            )

    def process_died(self, lane: int, how: str) -> None:
        self._alert("lane", "warning", f"{LANES[lane]}'s process {how}; it is started again")

    def process_not_started(self, lane: int, why: str) -> None:
        self._not_started(lane, f"{LANES[lane]}'s lane could not be started again: {why}")

    # --- load -----------------------------------------------------------------------------------

    def _check_load(self) -> None:
        engine, before = self._engine, self._engine.level
        fills = [
            engine.lanes.counts(lane)["depth"] / config.queue_size
            for lane, config in enumerate(engine.config.lanes)
        ]
        verdict = engine.load.check(fills)
        self.pressures = verdict.pressures
        for lane, pressure in verdict.changed:
            usual = engine.config.lanes[lane].batch_size
            size = usual if pressure == Pressure.NORMAL else 2 * usual
            engine.lanes.set_batch(lane, size)
            engine.wiring.set_batch(lane, size)
            self._alert(
                "pressure",
                ("info", "warning", "critical")[pressure],
                f"{LANES[lane]} is {fills[lane]:.0%} full: {pressure.name}",
            )
        if verdict.level != before:
            self._level_changed(before, verdict.level)

    def _level_changed(self, before: DegradationLevel, now: DegradationLevel) -> None:
        self._engine.apply()
        text = f"degradation LEVEL_{int(before)} to LEVEL_{int(now)} {now.name}"
        self._alert("level", "warning" if now > before else "info", text)
        if self._engine.state == "running":
            notice = NotificationSend(text=text, code=f"LEVEL_{int(now)}")
            self._engine.try_publish(self._engine.new_event("NOTIFICATION_SEND", notice, "events"))
        if now == DegradationLevel.CRITICAL_ONLY:
            alert = LaneAlert("guardrail", "critical", "only P0 is handled", "GR090")
            self._tell(alert, self._hooks.guardrail)

    def _check_drops(self) -> None:
        dropped = sum(self._engine.lanes.counts(lane)["dropped"] for lane in range(4))
        if dropped > self._dropped and (due := telemetry.log_every(1, "dropped")):
            most = sorted(
                (count, f"{kind} {key}".strip())
                for kind, keys in self._engine.dropped().items()
                for key, count in keys.items()
            )[-5:]
            words = ", ".join(f"{name} {count:,}" for count, name in reversed(most))
            log.warning("events were dropped", total=dropped, most=words, **due)
        self._dropped = dropped

    def _check_overflow(self) -> None:
        counts = self._engine.lanes.counts(0)
        blocked = counts["blocked"] + counts["over"]
        if blocked > self._blocked:
            fresh, self._blocked = blocked - self._blocked, blocked
            self._fail_safe("FS095", f"P0 was full for {fresh} publisher(s)")

    # --- handlers and threads -------------------------------------------------------------------

    def _check_slow(self) -> None:
        engine = self._engine
        for what, kind, handler, ns in engine.lanes.reports():
            name = engine.wiring.name_of(kind, handler)
            if what == "held":
                text = f"P0 waited {ns / 1e6:.1f} ms for the interpreter, held by {name}"
            else:
                text = f"{name} took {ns / 1e6:.1f} ms, more than its events allow"
            if due := telemetry.log_every(1, f"{what} {name}"):
                self._alert("slow", "warning", text, due["suppressed"])
        running = {
            (worker, kind): (handler, ns)
            for worker, kind, handler, ns in engine.lanes.running()
            if ns > P3_LIMIT_NS
        }
        for key, (handler, ns) in running.items():
            if key not in self._told_running:
                name = engine.wiring.name_of(key[1], handler)
                self._alert("slow", "warning", f"{name} has been at work for {ns / 1e9:.0f} s")
        self._told_running = set(running)
        self._check_apart()

    def _check_apart(self) -> None:
        long = {name: ns for name, ns in self._engine.wiring.running_handlers() if ns > P3_LIMIT_NS}
        for name in long.keys() - self._told_apart:
            self._alert("slow", "warning", f"{name} has been at work for {long[name] / 1e9:.0f} s")
        self._told_apart = set(long)

    def _check_faults(self) -> None:
        for worker, error in self._engine.lanes.faults():
            lane = self._engine.wiring.lane_of(worker)
            self._lost.append(worker)
            if lane == 0:
                self._fail_safe("FS096", f"P0's lane failed, suspend trading: {error}")
            else:
                self._alert("lane", "warning", f"{LANES[lane]}'s thread failed: {error}")
        self._lost = [worker for worker in self._lost if not self._revive(worker)]

    def _revive(self, worker: int) -> bool:
        """Tried at every check until it comes to life."""
        lane = self._engine.wiring.lane_of(worker)
        try:
            self._engine.lanes.revive(worker)
        except RuntimeError as error:
            if telemetry.log_every(60, f"revive {worker}"):
                self._not_started(lane, f"{LANES[lane]}'s lane could not be started again: {error}")
            return False
        return True

    def _not_started(self, lane: int, text: str) -> None:
        if lane == Priority.P1:
            self._fail_safe("FS097", text)
        else:
            self._alert("lane", "critical", text)

    def _check_sla(self) -> None:
        status = self._engine.status()
        for lane, limits in SLA.items():
            span = status.lanes[lane].total
            for part, limit in limits.items():
                key = f"{lane} {part}"
                if span.count >= 100 and getattr(span, part) > limit and key not in self._breached:
                    self._breached.add(key)
                    self._alert(
                        "sla",
                        "warning",
                        f"{key} is {getattr(span, part):.1f} ms, above {limit:g} ms",
                    )

    # --- telling --------------------------------------------------------------------------------

    def _fail_safe(self, code: str, text: str) -> None:
        self._tell(LaneAlert("fail_safe", "critical", text, code), self._hooks.fail_safe)

    def _alert(
        self,
        kind: Literal["pressure", "level", "slow", "lane", "sla"],
        severity: str,
        text: str,
        suppressed: int = 0,
    ) -> None:
        more = f" ({suppressed} more like it)" if suppressed else ""
        self._tell(
            msgspec.convert({"kind": kind, "severity": severity, "text": text + more}, LaneAlert)
        )

    def _tell(self, alert: LaneAlert, hook: Callable[[LaneAlert], None] | None = None) -> None:
        say = {"info": log.info, "warning": log.warning, "critical": log.error}[alert.severity]
        say(alert.text, kind=alert.kind, code=alert.code)
        for each in (self._hooks.alert, hook):
            if each is None:
                continue
            try:
                each(alert)
            except Exception:
                log.error("a hook failed", code=alert.code, exc_info=True)
