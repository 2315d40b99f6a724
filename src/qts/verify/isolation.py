"""Isolation measurement: latency of P0 while the other lanes are overloaded.

A P3 handler sleeps 5 s, four P2 handlers burn CPU in pure Python (or stay in one long C call),
10,000 P2 events of distinct keys and 50,000 P3 events flood their lanes, P1 ticks are published at
a steady rate, and P0 events at a fixed pace. The degradation level stays NORMAL, so that the load
pauses no lane. The latency of P0 counts from the moment at which its publisher, a Python thread, is
due to publish, to the handler's return.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from qts._native import COUNT_IN_ORDER
from qts.events import (
    SLA,
    DegradationLevel,
    Event,
    EventEngine,
    EventsConfig,
    LaneAlert,
    LaneStatus,
    Priority,
    compiled,
)
from qts.verify.isolation_load import (
    SLEEP_S,
    LoadGenerator,
    PriorityQueueEngine,
    busy_handlers,
    ignore,
    sleep,
)

_PROGRESS_INTERVAL_S = 0.2
_MIN_P0_EVENTS = 2000  # for a meaningful p99
_P3_INTERVAL_S, _P3_TIMEOUT_S = 2.0, 0.1
_MIN_BUSY = 0.9  # share of the time that P2's handlers must burn
# Limits of P0 in ms from the moment its publisher is due, beyond the machine's own stalls.
_DUE_LIMITS = {"p50": 2.0, "p99": 10.0, "max": 15.0}
# Limits of P0 in ms from publishing, beyond the SLA, by isolation.
_GOALS: dict[str, dict[str, float]] = {
    "thread": {"p50": 2, "p99": 5, "max": 15},
    "process": {"p99": 1},
    "compiled": {"p99": 0.2},
}


class LaneReport(msgspec.Struct, frozen=True):
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    sla_ms: dict[str, float]
    holds: bool
    published: int
    handled: int
    collapsed: int
    dropped: int
    sampled: int
    waiting: int


class BaselineReport(msgspec.Struct, frozen=True):
    """P0 under the same load on one queue.PriorityQueue and threads, from when it is due."""

    sent: int
    count: int
    in_order: bool
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    publisher_late_ms: dict[str, float]


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report; its field names are the keys of the JSON output."""

    verdict: Literal["PASS", "FAIL"]
    seconds: float
    isolation: Literal["thread", "process"]
    p0: Literal["python", "compiled"]
    c_call_ms: float
    goal_ms: dict[str, float]  # limits of P0 beyond the SLA
    lanes: dict[str, LaneReport]
    p0_sent: int
    p0_seen: int
    p0_in_order: bool
    p0_due_ms: dict[str, float]  # latency of P0 from the moment its publisher is due
    p2_busy: float  # share of the time in which P2's handlers burned
    publisher_late_ms: dict[str, float]  # delay of P0's publisher, a Python thread
    broken: list[str]  # limits that were exceeded
    machine_stall_ms: dict[str, float]  # wake-up delay of a sleeping process
    warnings: list[str]  # exceeded limits of P1 and P2, slow handlers
    naive: BaselineReport | None = None


class IsolationLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the load."""

    p0_per_s: float = 200.0
    ticks_per_s: float = 1000.0
    burners: int = 4
    c_call_ms: float = 0.0  # when set, P2 handlers stay in one C call of this length
    p0: Literal["python", "compiled"] = "python"
    plant_p0_ms: float = 0.0  # duration of a slow P0 handler, to test the verdict
    naive: bool = False  # also measure the baseline


def verify_isolation(
    seconds: float,
    config: EventsConfig | None = None,
    load: IsolationLoad | None = None,
    show: Callable[[float], None] = lambda _elapsed: None,
) -> IsolationReport:
    """Run the load for `seconds` and compare P0 with its limits."""
    load = load or IsolationLoad()
    run = _Run(config or EventsConfig(), load)
    with run.engine:  # processes have started before the measurement
        stall_probe = start_stall_probe(seconds)
        began = time.monotonic()
        run.generator.start()
        while (elapsed := time.monotonic() - began) < seconds:
            show(elapsed)
            run.let_p3_begin(elapsed)
            run.stop.wait(min(_PROGRESS_INTERVAL_S, seconds - elapsed))
        run.end()
        took = time.monotonic() - began
        lanes = run.engine.status().lanes
    naive = _measure_baseline(seconds, load) if load.naive else None
    return run.report(lanes, took, read_stalls(stall_probe), naive)


class _Run:
    """Engine under load, and what its P0 handler received."""

    def __init__(self, config: EventsConfig, load: IsolationLoad) -> None:
        self.stop = threading.Event()
        self._load = load
        self._mode: Literal["thread", "process"] = (
            "process" if config.p2.isolation == config.p3.isolation == "process" else "thread"
        )
        self._seen: list[str] = []
        self._done: list[float] = []  # when the handler returned
        self._counts = np.zeros(3)  # seen, last, out of order; written by the compiled handler
        self._alerts: list[LaneAlert] = []
        self._asleep = threading.Event()  # P3's handler
        self._p3_due_s = 0.0
        self.engine = EventEngine(config, on_alert=self._alerts.append)
        self.engine.degrade(DegradationLevel.NORMAL)
        self._register(config)
        self.generator = LoadGenerator(self.engine, self.stop, load.p0_per_s, load.ticks_per_s)

    def _register(self, config: EventsConfig) -> None:
        engine = self.engine
        if self._load.p0 == "compiled":
            engine.on("FILL_CONFIRMED", compiled(COUNT_IN_ORDER, self._counts))
        else:
            engine.on("FILL_CONFIRMED", self._on_fill)
        engine.on("PRICE_TICK", ignore)
        for handler in busy_handlers(self._load.burners, self._load.c_call_ms):
            engine.on("STRATEGY_EVALUATE", handler)
        isolated = config.p3.isolation == "process"
        engine.on("REPORT_GENERATE", sleep if isolated else self._sleep)
        engine.on("LOG_WRITE", ignore)

    def end(self) -> None:
        self.stop.set()
        self.generator.join()
        self.engine.wait_drained(5.0, Priority.P0, Priority.P1)

    def _on_fill(self, event: Event) -> None:
        self._seen.append(event.event_id)
        if self._load.plant_p0_ms:
            time.sleep(self._load.plant_p0_ms / 1000)
        self._done.append(time.monotonic())

    def let_p3_begin(self, elapsed: float) -> None:
        """Pause P2, which is always full and goes first, every 2 s until P3's handler sleeps."""
        if self._mode == "process" or elapsed < self._p3_due_s:
            return
        self._p3_due_s = elapsed + _P3_INTERVAL_S
        self._asleep.clear()
        self.engine.pause(Priority.P2)
        self._asleep.wait(_P3_TIMEOUT_S)
        self.engine.resume(Priority.P2)

    def _sleep(self, _event: Event) -> None:
        self._asleep.set()
        self.stop.wait(SLEEP_S)

    def _p0_received(self) -> tuple[int, bool]:
        """Return how many events the handler received, and whether each once and in order."""
        if self._load.p0 == "compiled":
            seen, _, misordered = (int(each) for each in self._counts)
            return seen, seen == len(self.generator.sent) and not misordered
        return len(self._seen), self._seen == self.generator.sent

    def _due_ms(self, p0: LaneReport, late: dict[str, float]) -> dict[str, float]:
        if self._load.p0 == "compiled":  # it records no times: the sum is an upper bound
            return {part: late[part] + getattr(p0, f"{part}_ms") for part in late}
        return _quantiles(_latencies(self._done, self.generator.due))

    def report(
        self,
        lanes: dict[str, LaneStatus],
        seconds: float,
        stalls: dict[str, float],
        naive: BaselineReport | None,
    ) -> IsolationReport:
        rows = {name: _lane_report(name, lane) for name, lane in lanes.items()}
        goal = _GOALS["compiled" if self._load.p0 == "compiled" else self._mode]
        sent, (seen, in_order) = len(self.generator.sent), self._p0_received()
        late = _quantiles(self.generator.late_ms)
        due = self._due_ms(rows["P0"], late)
        broken = _breaches("P0", rows["P0"], {**SLA["P0"], **goal})
        broken += [
            f"P0 {part} {due[part]:.2f} ms from when its publisher is due exceeds {limit:g} ms "
            f"and the machine's {stalls.get(part, 0.0):.2f} ms"
            for part, limit in _DUE_LIMITS.items()
            if due[part] - stalls.get(part, 0.0) > limit
        ]
        busy = min(
            1.0, self.engine.lanes.latency(int(Priority.P2))["handling"]["sum"] / 1e9 / seconds
        )
        if self._load.burners and busy < _MIN_BUSY:
            broken.append(f"P2's handlers burned {busy:.0%} of the time, below {_MIN_BUSY:.0%}")
        if not in_order:
            broken.append(f"P0: {sent} sent, {seen} seen, or out of order")
        if lanes["P0"].dropped:
            broken.append(f"P0 lost {lanes['P0'].dropped} events")
        warnings = [each for name in ("P1", "P2") for each in _breaches(name, rows[name])]
        warnings += sorted({alert.text for alert in self._alerts if alert.kind == "slow"})[:20]
        if sent < _MIN_P0_EVENTS:
            warnings.append(f"only {sent} P0 events; a p99 needs {_MIN_P0_EVENTS:,}")
        return IsolationReport(
            verdict="FAIL" if broken else "PASS",
            seconds=round(seconds, 3),
            isolation=self._mode,
            p0=self._load.p0,
            c_call_ms=self._load.c_call_ms,
            goal_ms=goal,
            lanes=rows,
            p0_sent=sent,
            p0_seen=seen,
            p0_in_order=in_order,
            p0_due_ms=due,
            p2_busy=round(busy, 3),
            publisher_late_ms=late,
            broken=broken,
            machine_stall_ms=stalls,
            warnings=warnings,
            naive=naive,
        )


def _measure_baseline(seconds: float, load: IsolationLoad) -> BaselineReport:
    stop, engine, seen, done = threading.Event(), PriorityQueueEngine(), list[str](), list[float]()
    engine.on("FILL_CONFIRMED", lambda event: seen.append(event.event_id))
    engine.on("FILL_CONFIRMED", lambda _: done.append(time.monotonic()))
    engine.on("PRICE_TICK", ignore)
    engine.on("LOG_WRITE", ignore)
    for handler in busy_handlers(load.burners, load.c_call_ms):
        engine.on("STRATEGY_EVALUATE", handler)
    engine.on("REPORT_GENERATE", lambda _: stop.wait(SLEEP_S))
    generator = LoadGenerator(engine, stop, load.p0_per_s, load.ticks_per_s)
    engine.start()
    generator.start()
    stop.wait(seconds)
    stop.set()
    generator.join()
    engine.stop(5.0)
    latency = _quantiles(_latencies(done, generator.due))
    return BaselineReport(
        sent=len(generator.sent),
        count=len(seen),
        in_order=seen == generator.sent[: len(seen)],
        publisher_late_ms=_quantiles(generator.late_ms),
        **{f"{part}_ms": value for part, value in latency.items()},
    )


def _latencies(done: list[float], due: list[float]) -> list[float]:
    """Return the ms from when each event was due; events arrive in order, or the verdict fails."""
    return [(end - begin) * 1e3 for end, begin in zip(done, due, strict=False)]


def _quantiles(values_ms: list[float]) -> dict[str, float]:
    parts = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    found = np.percentile(values_ms or [0.0], list(parts.values()))
    return {part: round(float(value), 4) for part, value in zip(parts, found, strict=True)}


# Run in a separate process, so that only the machine can delay it.
_STALL_PROBE = """
import sys, time
late, end = [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    began = time.perf_counter()
    time.sleep(0.005)
    late.append((time.perf_counter() - began - 0.005) * 1e3)
late.sort()
print(late[len(late) // 2], late[int(len(late) * 0.99)], late[-1])
"""


def start_stall_probe(seconds: float) -> subprocess.Popen[str]:
    """Start a process that sleeps for so long, 5 ms at a time, and measures how late it wakes."""
    command = [sys.executable, "-I", "-S", "-c", _STALL_PROBE, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read_stalls(probe: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for the probe; return p50, p99 and max of its delays in ms."""
    numbers = probe.communicate()[0].split()
    return dict(
        zip(("p50", "p99", "max"), (round(float(each), 3) for each in numbers), strict=False)
    )


def _lane_report(name: str, lane: LaneStatus) -> LaneReport:
    latency, limits = lane.total, SLA.get(name, {})
    return LaneReport(
        count=latency.count,
        p50_ms=round(latency.p50, 4),
        p95_ms=round(latency.p95, 4),
        p99_ms=round(latency.p99, 4),
        max_ms=round(latency.max, 4),
        sla_ms=limits,
        holds=all(getattr(latency, part) <= limit for part, limit in limits.items()),
        published=lane.published,
        handled=lane.handled,
        collapsed=lane.collapsed,
        dropped=lane.dropped,
        sampled=lane.sampled,
        waiting=lane.waiting,
    )


def _breaches(name: str, lane: LaneReport, limits: dict[str, float] | None = None) -> list[str]:
    return [
        f"{name} {part} {getattr(lane, f'{part}_ms'):.2f} ms exceeds {limit:g} ms"
        for part, limit in (lane.sla_ms if limits is None else limits).items()
        if getattr(lane, f"{part}_ms") > limit
    ]
