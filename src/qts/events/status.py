"""Load and status of the lanes: pressure, degradation level, counts, latencies and metrics.

    LEVEL_0 NORMAL ⇄ LEVEL_1 P3_PAUSED ⇄ LEVEL_2 P2_P3_PAUSED ⇄ LEVEL_3 CRITICAL_ONLY

A level is entered as soon as the load requires it, and left one step at a time after
`recovery_checks` consecutive checks at lower load. Pressure begins at a lane's threshold and ends a
tenth of the lane below it. Both prevent flapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from qts import telemetry
from qts.events.config import EventsConfig

if TYPE_CHECKING:
    from qts.events.lanes import Lanes

LANES = ("P0", "P1", "P2", "P3")
OUTCOMES = ("published", "handled", "collapsed", "dropped", "sampled", "dead")
_INCIDENTS = ("retried", "blocked", "over", "overran")
QUANTILES = {"p50": "0.5", "p95": "0.95", "p99": "0.99", "p99_9": "0.999", "max": "1"}

HYSTERESIS = 0.1  # of the lane: how far below its threshold pressure ends


class Pressure(IntEnum):
    NORMAL = 0
    WARNING = 1
    CRITICAL = 2


class DegradationLevel(IntEnum):
    NORMAL = 0
    P3_PAUSED = 1
    P2_P3_PAUSED = 2
    CRITICAL_ONLY = 3  # P0, and of P1 only the handlers marked essential


class LoadCheck(msgspec.Struct, frozen=True):
    """Result of one check."""

    pressures: tuple[Pressure, ...]
    level: DegradationLevel
    changed: tuple[tuple[int, Pressure], ...] = ()  # lanes whose pressure changed


class DegradationController:
    """Level computed from successive fill ratios; uses no clock and no lanes."""

    def __init__(self, config: EventsConfig) -> None:
        self._lanes = config.lanes
        self._recovery_checks = config.recovery_checks
        self._pressures = [Pressure.NORMAL] * 4
        self._lower_checks = 0
        self.level = DegradationLevel.NORMAL
        self.manual_level: DegradationLevel | None = None

    def check(self, fills: Sequence[float]) -> LoadCheck:
        changed = []
        for lane, fill in enumerate(fills):
            new = self._pressure(lane, fill)
            if new != self._pressures[lane]:
                self._pressures[lane] = new
                changed.append((lane, new))
        self._update_level()
        return LoadCheck(tuple(self._pressures), self.level, tuple(changed))

    def _pressure(self, lane: int, fill: float) -> Pressure:
        config, current = self._lanes[lane], self._pressures[lane]
        for threshold, pressure in (
            (config.critical, Pressure.CRITICAL),
            (config.warning, Pressure.WARNING),
        ):
            if fill >= (threshold if current < pressure else max(threshold - HYSTERESIS, 0.001)):
                return pressure
        return Pressure.NORMAL

    def _required_level(self) -> DegradationLevel:
        p0, p1, p2, _ = self._pressures
        if p0 == Pressure.CRITICAL:
            return DegradationLevel.CRITICAL_ONLY
        if p1 == Pressure.CRITICAL or p0 == Pressure.WARNING:
            return DegradationLevel.P2_P3_PAUSED
        if p1 == Pressure.WARNING or p2 == Pressure.CRITICAL:
            return DegradationLevel.P3_PAUSED
        return DegradationLevel.NORMAL

    def _update_level(self) -> None:
        required = self._required_level() if self.manual_level is None else self.manual_level
        if required > self.level or self.manual_level is not None:
            self.level, self._lower_checks = required, 0
        elif required == self.level:
            self._lower_checks = 0
        else:
            self._lower_checks += 1
            if self._lower_checks >= self._recovery_checks:
                self.level, self._lower_checks = DegradationLevel(self.level - 1), 0


class Latency(msgspec.Struct, frozen=True):
    """Quantiles in milliseconds; all zero while `count` is zero."""

    count: int
    p50: float
    p95: float
    p99: float
    p99_9: float
    max: float


NO_LATENCY = Latency(0, 0.0, 0.0, 0.0, 0.0, 0.0)


class LaneStatus(msgspec.Struct, frozen=True):
    depth: int
    capacity: int
    published: int
    handled: int
    collapsed: int
    dropped: int
    sampled: int
    dead: int
    waiting: int  # in the lane, or in flight
    retried: int
    blocked: int  # publishers that had to wait
    over: int  # published by handlers past the bound
    overran: int  # took longer than the type allows
    paused: bool
    pressure: str
    wait: Latency
    handling: Latency
    total: Latency
    # As `total`, which is since the start, but of the last minute and of the last ten.
    minute: Latency = NO_LATENCY
    ten_minutes: Latency = NO_LATENCY

    @property
    def balanced(self) -> bool:
        """Whether every published event is counted exactly once."""
        ends = self.handled + self.collapsed + self.dropped + self.sampled + self.dead
        return self.published == ends + self.waiting


class EngineStatus(msgspec.Struct, frozen=True):
    """Snapshot of the engine."""

    lanes: dict[str, LaneStatus]
    level: str
    dead_letters: int
    gil_wait: Latency  # of P0


def read_status(
    lanes: Lanes,
    config: EventsConfig,
    pressures: tuple[Pressure, ...],
    level: DegradationLevel,
    dead_letters: int,
) -> EngineStatus:
    rows = {}
    for number, name in enumerate(LANES):
        spans = lanes.latency(number)
        rows[name] = LaneStatus(
            **lanes.counts(number),
            capacity=config.lanes[number].queue_size,
            paused=lanes.paused(number),
            pressure=pressures[number].name,
            wait=_latency(spans["wait"]),
            handling=_latency(spans["handling"]),
            total=_latency(spans["total"]),
            minute=_latency(lanes.recent_latency(number, False)),
            ten_minutes=_latency(lanes.recent_latency(number, True)),
        )
    return EngineStatus(
        rows, f"LEVEL_{int(level)} {level.name}", dead_letters, _latency(lanes.gil_wait())
    )


def _latency(spans: dict[str, int]) -> Latency:
    parts = {name: spans[name] / 1e6 for name in QUANTILES}
    return Latency(count=spans["count"], **parts)


class LaneMetrics:
    """Telemetry of the lanes, updated from one status to the next."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], int] = {}
        self._events = telemetry.counter(
            "qts_events", "Events by lane and outcome.", ["lane", "outcome"]
        )
        self._depth = telemetry.gauge("qts_events_depth", "Events waiting in a lane.", ["lane"])
        self._fill = telemetry.gauge(
            "qts_events_fill_ratio", "Fill ratio of a lane, 0 to 1.", ["lane"]
        )
        self._level = telemetry.gauge("qts_events_level", "Degradation level, 0 to 3.")
        self._spans = telemetry.gauge(
            "qts_events_latency_seconds",
            "Latency of a lane: waiting, handling and total since the start, and total of the last "
            "minute and the last ten; quantile 1 is the maximum.",
            ["lane", "part", "quantile"],
        )

    def update(self, status: EngineStatus) -> None:
        for name, lane in status.lanes.items():
            for outcome in (*OUTCOMES, *_INCIDENTS):
                count = getattr(lane, outcome)
                self._events.labels(name, outcome).inc(count - self._last.get((name, outcome), 0))
                self._last[name, outcome] = count
            self._depth.labels(name).set(lane.depth)
            self._fill.labels(name).set(lane.depth / lane.capacity)
            for part in ("wait", "handling", "total", "minute", "ten_minutes"):
                span: Latency = getattr(lane, part)
                for field, quantile in QUANTILES.items():
                    self._spans.labels(name, part, quantile).set(getattr(span, field) / 1e3)
        self._level.set(int(status.level[6]))
