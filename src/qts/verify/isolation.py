"""Proof of isolation: P0 keeps its promise while the other lanes are made to misbehave.

A P3 handler sleeps 5 s, four P2 handlers burn CPU in pure Python (or sit in one long C call),
10,000 P2 and 50,000 P3 events flood their lanes again and again; P1 ticks flow, and P0 events come
at a steady pace.
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

from qts.events import (
    SLA,
    AlertHooks,
    Event,
    EventEngine,
    EventsConfig,
    LaneAlert,
    LaneStatus,
    Priority,
    compiled,
)
from qts.events.process.protocol import COUNT_IN_ORDER
from qts.verify.baseline_queue import PriorityQueueEngine
from qts.verify.isolation_load import SLEEP_S, LoadGenerator, busy_handlers, doze, glance

_LOOK_S = 0.2
_ENOUGH = 2000  # P0 events below which a p99 says little
# Later than this beside the machine's own stalls: somebody kept the interpreter, and whoever would
# have published meanwhile could not.
_PUBLISHER_MS = 25.0

# Beyond the SLA: P0 in ms by how it is isolated.
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
    """The same load on one queue.PriorityQueue and threads; P0 only."""

    sent: int
    count: int
    in_order: bool
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    publisher_late_ms: dict[str, float]


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON that scripts rely on."""

    verdict: Literal["PASS", "FAIL"]
    seconds: float
    isolation: Literal["thread", "process"]
    p0: Literal["python", "compiled"]
    c_call_ms: float
    goal_ms: dict[str, float]  # of P0 in this way of isolation
    lanes: dict[str, LaneReport]
    p0_sent: int
    p0_seen: int
    p0_in_order: bool
    publisher_late_ms: dict[str, float]  # P0's publisher is Python too: how late it came to publish
    broken: list[str]  # why it failed
    machine_stall_ms: dict[str, float]  # how late a sleeper of another process woke meanwhile
    warnings: list[str]  # what P1 to P3 could not hold, and handlers by name
    naive: BaselineReport | None = None


class IsolationLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How the run is made hard."""

    p0_per_s: float = 200.0
    ticks_per_s: float = 1000.0
    burners: int = 4
    c_call_ms: float = 0.0  # P2 handlers sit in one C call of this length instead
    p0: Literal["python", "compiled"] = "python"
    plant_p0_ms: float = 0.0  # a P0 handler that takes so long, to see the verdict change
    naive: bool = False  # run the naive engine as long again


def verify_isolation(
    seconds: float,
    config: EventsConfig | None = None,
    load: IsolationLoad | None = None,
    show: Callable[[float], None] = lambda _elapsed: None,
) -> IsolationReport:
    load = load or IsolationLoad()
    run = _Run(config or EventsConfig(), load)
    machine: subprocess.Popen[str] | None = None
    with run.engine:  # processes are up before the clock starts
        machine = _watch_machine(seconds)
        began = time.monotonic()
        run.pressers.start()
        while (elapsed := time.monotonic() - began) < seconds:
            show(elapsed)
            run.stop.wait(min(_LOOK_S, seconds - elapsed))
        run.end()
        took = time.monotonic() - began
        lanes = run.engine.status().lanes
    naive = _run_naive(seconds, load) if load.naive else None
    return run.report(lanes, took, _stalls(machine), naive)


class _Run:
    def __init__(self, config: EventsConfig, load: IsolationLoad) -> None:
        self.stop = threading.Event()
        self._load = load
        self._mode: Literal["thread", "process"] = (
            "process" if config.p2.isolation == config.p3.isolation == "process" else "thread"
        )
        self._seen: list[str] = []
        self._counted = np.zeros(3)  # seen, last, out of order: the compiled handler's own record
        self._alerts: list[LaneAlert] = []
        self.engine = EventEngine(config, hooks=AlertHooks(alert=self._alerts.append))
        self._register(config)
        self.pressers = LoadGenerator(self.engine, self.stop, load.p0_per_s, load.ticks_per_s)

    def _register(self, config: EventsConfig) -> None:
        engine = self.engine
        if self._load.p0 == "compiled":
            engine.on("FILL_CONFIRMED", compiled(COUNT_IN_ORDER, self._counted))
        else:
            engine.on("FILL_CONFIRMED", self._fill)
        engine.on("PRICE_TICK", glance)
        for hog in busy_handlers(self._load.burners, self._load.c_call_ms):
            engine.on("STRATEGY_EVALUATE", hog)
        apart = config.p3.isolation == "process"
        engine.on("REPORT_GENERATE", doze if apart else self._doze)
        engine.on("LOG_WRITE", glance)

    def end(self) -> None:
        self.stop.set()
        self.pressers.join()
        self.engine.wait_drained(5.0, Priority.P0, Priority.P1)

    def _fill(self, event: Event) -> None:
        self._seen.append(event.event_id)
        if self._load.plant_p0_ms:
            time.sleep(self._load.plant_p0_ms / 1000)

    def _doze(self, _event: Event) -> None:
        self.stop.wait(SLEEP_S)

    def _p0(self) -> tuple[int, bool]:
        """How many the handler has seen, by its own record, and whether each once and in order."""
        if self._load.p0 == "compiled":
            seen, _, strays = (int(each) for each in self._counted)
            return seen, seen == len(self.pressers.sent) and not strays
        return len(self._seen), self._seen == self.pressers.sent

    def report(
        self,
        lanes: dict[str, LaneStatus],
        seconds: float,
        stalls: dict[str, float],
        naive: BaselineReport | None,
    ) -> IsolationReport:
        rows = {name: _lane(name, lane) for name, lane in lanes.items()}
        goal = _GOALS["compiled" if self._load.p0 == "compiled" else self._mode]
        sent, (seen, in_order) = len(self.pressers.sent), self._p0()
        broken = _breaches("P0", rows["P0"], {**SLA["P0"], **goal})
        if not in_order:
            broken.append(f"P0: {sent} sent, {seen} seen, or out of order")
        if lanes["P0"].dropped:
            broken.append(f"P0 lost {lanes['P0'].dropped} events")
        late = _quantiles(self.pressers.late_ms)
        if late["p99"] - stalls.get("p99", 0.0) > _PUBLISHER_MS:
            broken.append(f"P0's publisher waited p99 {late['p99']:.0f} ms for the interpreter")
        warnings = [each for name in ("P1", "P2") for each in _breaches(name, rows[name])]
        warnings += sorted({alert.text for alert in self._alerts if alert.kind == "slow"})[:20]
        if sent < _ENOUGH:
            warnings.append(f"only {sent} P0 events; {_ENOUGH:,} make a p99 worth its name")
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
            publisher_late_ms=late,
            broken=broken,
            machine_stall_ms=stalls,
            warnings=warnings,
            naive=naive,
        )


def _run_naive(seconds: float, load: IsolationLoad) -> BaselineReport:
    stop, engine, seen = threading.Event(), PriorityQueueEngine(), list[str]()
    engine.on("FILL_CONFIRMED", lambda event: seen.append(event.event_id))
    engine.on("PRICE_TICK", glance)
    engine.on("LOG_WRITE", glance)
    for hog in busy_handlers(load.burners, load.c_call_ms):
        engine.on("STRATEGY_EVALUATE", hog)
    engine.on("REPORT_GENERATE", lambda _: stop.wait(SLEEP_S))
    pressers = LoadGenerator(engine, stop, load.p0_per_s, load.ticks_per_s)
    engine.start()
    pressers.start()
    stop.wait(seconds)
    stop.set()
    pressers.join()
    engine.stop(5.0)
    spans = _quantiles(engine.p0_ms)
    return BaselineReport(
        sent=len(pressers.sent),
        count=len(seen),
        in_order=seen == pressers.sent[: len(seen)],
        publisher_late_ms=_quantiles(pressers.late_ms),
        **{f"{part}_ms": value for part, value in spans.items()},
    )


def _quantiles(spans_ms: list[float]) -> dict[str, float]:
    parts = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    found = np.percentile(spans_ms or [0.0], list(parts.values()))
    return {part: round(float(value), 4) for part, value in zip(parts, found, strict=True)}


# In a process of its own, so that nothing of ours is in its way.
_SLEEPER = """
import sys, time
late, end = [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    began = time.perf_counter()
    time.sleep(0.005)
    late.append((time.perf_counter() - began - 0.005) * 1e3)
late.sort()
print(late[len(late) // 2], late[int(len(late) * 0.99)], late[-1])
"""


def _watch_machine(seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", "-c", _SLEEPER, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _stalls(machine: subprocess.Popen[str]) -> dict[str, float]:
    numbers = machine.communicate()[0].split()
    return dict(
        zip(("p50", "p99", "max"), (round(float(each), 3) for each in numbers), strict=False)
    )


def _lane(name: str, lane: LaneStatus) -> LaneReport:
    span, limits = lane.total, SLA.get(name, {})
    return LaneReport(
        count=span.count,
        p50_ms=round(span.p50, 4),
        p95_ms=round(span.p95, 4),
        p99_ms=round(span.p99, 4),
        max_ms=round(span.max, 4),
        sla_ms=limits,
        holds=all(getattr(span, part) <= limit for part, limit in limits.items()),
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
