"""Proof of isolation: P0 keeps its promise while the other lanes are made to misbehave.

A P3 handler sleeps 5 s, four P2 handlers burn CPU in pure Python, 10,000 P2 and 50,000 P3 events
flood their lanes again and again; P1 ticks flow, and P0 events come at a steady pace.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from qts.events import payloads as p
from qts.events.config import EventsConfig
from qts.events.engine import Engine
from qts.events.event import Event, Priority
from qts.events.monitor import SLA, Alert, Hooks
from qts.events.status import LaneStatus

_SLEEP_S = 5.0
_BURN_S = 0.005
_FLOOD_P2, _FLOOD_P3 = 10_000, 50_000
_FLOOD_EVERY_S = 2.0
_STRATEGIES = 8
_LOOK_S = 0.2


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


class IsolationReport(msgspec.Struct, frozen=True):
    """The JSON that scripts rely on."""

    verdict: Literal["PASS", "FAIL"]
    seconds: float
    lanes: dict[str, LaneReport]
    p0_sent: int
    p0_seen: int
    p0_in_order: bool
    broken: list[str]  # why it failed
    machine_stall_ms: dict[str, float]  # how late a sleeper of another process woke meanwhile
    warnings: list[str]  # what P1 to P3 could not hold, and handlers by name


class IsolationLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How the run is made hard."""

    p0_per_s: float = 200.0
    ticks_per_s: float = 1000.0
    burners: int = 4
    plant_p0_ms: float = 0.0  # a P0 handler that takes so long, to see the verdict change


def verify_isolation(
    seconds: float,
    config: EventsConfig | None = None,
    load: IsolationLoad | None = None,
    show: Callable[[float], None] = lambda _elapsed: None,
) -> IsolationReport:
    run = _Run(config or EventsConfig(), load or IsolationLoad())
    machine = _watch_machine(seconds)
    began = time.monotonic()
    with run.engine:
        run.publish()
        while (elapsed := time.monotonic() - began) < seconds:
            show(elapsed)
            run.stop.wait(min(_LOOK_S, seconds - elapsed))
        run.end()
        lanes = run.engine.status().lanes
    return run.report(lanes, time.monotonic() - began, _stalls(machine))


class _Run:
    def __init__(self, config: EventsConfig, load: IsolationLoad) -> None:
        self.stop = threading.Event()
        self._load = load
        self._sent: list[str] = []
        self._seen: list[str] = []
        self._alerts: list[Alert] = []
        self.engine = Engine(config, hooks=Hooks(alert=self._alerts.append))
        self.engine.on("FILL_CONFIRMED", self._fill)
        self.engine.on("PRICE_TICK", _glance)
        for burn in [_burn_a, _burn_b, _burn_c, _burn_d][: load.burners]:
            self.engine.on("STRATEGY_EVALUATE", burn)
        self.engine.on("REPORT_GENERATE", self._sleep)
        self.engine.on("LOG_WRITE", _glance)
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._publish_p0, self._publish_ticks, self._flood)
        ]

    def publish(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()
        self.engine.drained(5.0, Priority.P0, Priority.P1)

    def _fill(self, event: Event) -> None:
        self._seen.append(event.event_id)
        if self._load.plant_p0_ms:
            time.sleep(self._load.plant_p0_ms / 1000)

    def _sleep(self, _event: Event) -> None:
        self.stop.wait(_SLEEP_S)

    def _publish_p0(self) -> None:
        fill = p.Fill(order_id="1", symbol="005930", filled_qty=1, filled_price=1, filled_time=1)
        for _ in _paced(self._load.p0_per_s, self.stop):
            event = self.engine.event("FILL_CONFIRMED", fill, "verify")
            self._sent.append(event.event_id)
            self.engine.publish(event)

    def _publish_ticks(self) -> None:
        ticks = [
            self.engine.event("PRICE_TICK", p.PriceTick(symbol=f"{n:06}", price=1.0), "verify")
            for n in range(250)
        ]
        per_turn = max(1, round(self._load.ticks_per_s / 100))
        for turn in _paced(100, self.stop):
            first = turn * per_turn % len(ticks)
            self.engine.publish_many(ticks[first : first + per_turn])

    def _flood(self) -> None:
        engine = self.engine
        p2 = [
            engine.event("STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type=f"S{n}"), "verify")
            for n in range(_STRATEGIES)
        ]
        line = engine.event("LOG_WRITE", p.LogWrite(message="x"), "verify")
        report = engine.event("REPORT_GENERATE", p.ReportGenerate(report="x"), "verify")
        while not self.stop.is_set():
            engine.publish(report)
            for _ in range(_FLOOD_P2 // 100):
                engine.publish_many((p2 * 13)[:100])
            for _ in range(_FLOOD_P3 // 100):
                engine.publish_many([line] * 100)
            self.stop.wait(_FLOOD_EVERY_S)

    def report(
        self, lanes: dict[str, LaneStatus], seconds: float, stalls: dict[str, float]
    ) -> IsolationReport:
        rows = {name: _lane(name, lane) for name, lane in lanes.items()}
        in_order = self._seen == self._sent
        broken = _breaches("P0", rows["P0"])
        if not in_order:
            broken.append(f"P0: {len(self._sent)} sent, {len(self._seen)} seen, or out of order")
        if lanes["P0"].dropped:
            broken.append(f"P0 lost {lanes['P0'].dropped} events")
        warnings = [each for name in ("P1", "P2") for each in _breaches(name, rows[name])]
        warnings += sorted({alert.text for alert in self._alerts if alert.kind == "slow"})[:20]
        return IsolationReport(
            "FAIL" if broken else "PASS",
            round(seconds, 3),
            rows,
            len(self._sent),
            len(self._seen),
            in_order,
            broken,
            stalls,
            warnings,
        )


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


def _paced(per_s: float, stop: threading.Event) -> Iterator[int]:
    turn, begin = 0, time.monotonic()
    while not stop.is_set():
        yield turn
        turn += 1
        stop.wait(max(0.0, begin + turn / per_s - time.monotonic()))


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


def _breaches(name: str, lane: LaneReport) -> list[str]:
    return [
        f"{name} {part} {getattr(lane, f'{part}_ms'):.2f} ms exceeds {limit:g} ms"
        for part, limit in lane.sla_ms.items()
        if getattr(lane, f"{part}_ms") > limit
    ]


def _glance(_event: Event) -> None:
    """A handler that does next to nothing."""


def _burn() -> None:
    end = time.perf_counter() + _BURN_S
    while time.perf_counter() < end:
        sum(number * number for number in range(50))


def _burn_a(_event: Event) -> None:
    _burn()


def _burn_b(_event: Event) -> None:
    _burn()


def _burn_c(_event: Event) -> None:
    _burn()


def _burn_d(_event: Event) -> None:
    _burn()
