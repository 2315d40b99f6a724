"""Report of a run: every message accounted for, latencies, and a verdict for scripts.

The last report is saved in the home for the dashboard. Two runs delivered the same messages if
their streams have the same counts and digests.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

import msgspec

from qts.domain import OperationError, RefusedError

STAGES = ("stage1", "processing", "stage2", "strategy", "total")
_PERCENTS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9, "max": 100.0}
_LABELS = {"p99_9": "p99.9"}

FILE = "router.json"
_SHOWN = 3

Curve = tuple[tuple[float, float], ...]  # (percentile 0..100, microseconds), both rising

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 130, 60, 60
_COLOURS = {"stage1": "#4477aa", "processing": "#228833", "stage2": "#ccbb44", "total": "#222222"}
_OTHER = "#aa3377"
_FINEST_US = 0.001
_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999)
_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    f' height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="13">'
    f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
)


class Percentiles(msgspec.Struct, frozen=True):
    """Latency percentiles in microseconds."""

    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float


class StallFloor(msgspec.Struct, frozen=True, kw_only=True):
    """Stalls of the machine itself, measured by a thread that only reads the clock."""

    seconds: float
    over_1us: int
    over_20us: int
    longest_us: float
    share_lost: float  # of the time
    ping_pong_ns: float | None = None  # round trip of one cache line between two cores


class QueueLocation(msgspec.Struct, frozen=True):
    """Place and number of messages that were in flight when the run ended."""

    place: str
    count: int


class StrategyCount(msgspec.Struct, frozen=True, kw_only=True):
    strategy: int
    delivered: int
    violations: int = 0
    gaps: int = 0


class StreamDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Messages a strategy got of one producer and type; equal digests mean equal messages."""

    strategy: int
    producer: int
    msg_type: int
    delivered: int
    digest: str


class RouterReport(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    offered: int
    produced: int
    delivered: int
    undelivered: int
    violations: int  # out of order where order is required
    gaps: int  # missing in a sequence of one producer and type
    reordered: int = 0  # out of order where it is allowed
    seconds: float
    plan: dict[str, Any]
    latency_us: dict[str, Percentiles]
    stall_floor: StallFloor | None = None
    undelivered_at: tuple[QueueLocation, ...] = ()
    failures: tuple[str, ...] = ()
    per_strategy: tuple[StrategyCount, ...] = ()
    notes: tuple[str, ...] = ()
    streams: tuple[StreamDigest, ...] = ()  # with Options(digest=True)
    rss_mb: float | None = None  # memory of the whole process at the end
    curves: dict[str, Curve] = {}  # for the plot: (percentile, microseconds), finer than latency_us

    @property
    def verdict(self) -> Literal["PASSED", "FAILED"]:
        lossless = self.delivered == self.produced and self.undelivered == 0
        faultless = not (self.violations or self.gaps or self.failures)
        return "PASSED" if lossless and faultless else "FAILED"

    @property
    def rate_per_s(self) -> float:
        return self.delivered / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["curves"]
        return {
            "scenario": plain.pop("scenario"),
            "verdict": self.verdict,
            **plain,
            "rate_per_s": round(self.rate_per_s, 1),
        }

    def render(self) -> str:
        """Return tables for a terminal; the last line is the verdict."""
        return "\n".join([*self._counts(), *self._latencies(), *self._notes(), self._summary()])

    def save_plot(self, path: Path) -> None:
        """Write an SVG plot of latency by percentile."""
        curves = self.curves or {
            stage: tuple((_PERCENTS[name], us) for name, us in _items(values))
            for stage, values in self.latency_us.items()
        }
        floor = self.stall_floor.longest_us if self.stall_floor else None
        title = f"{self.scenario}: {self.delivered:,} messages, {self.rate_per_s:,.0f} a second"
        try:
            path.write_text(draw_latency_plot(title, curves, floor), encoding="utf-8")
        except OSError as error:
            raise OperationError(f"cannot write plot {os.fspath(path)}: {error.strerror}") from None

    def _counts(self) -> Iterator[str]:
        rate = f"{self.rate_per_s:,.0f} messages delivered a second"
        yield f"{self.scenario}: {self.seconds:.2f} s, {rate}"
        share = f" ({self.produced / self.offered:.1%} of offered)" if self.offered else ""
        rows = {
            "offered": f"{self.offered:,}",
            "produced": f"{self.produced:,}{share}",
            "delivered": f"{self.delivered:,}",
            "undelivered": f"{self.undelivered:,}",
            "violations": f"{self.violations:,}",
            "gaps": f"{self.gaps:,}",
        }
        if self.reordered:
            rows["reordered"] = f"{self.reordered:,} (allowed: their types do not require order)"
        yield from (f"  {name:<12} {value}" for name, value in rows.items())
        for at in self.undelivered_at:
            yield f"    {at.count:,} in {at.place}"
        for one in self.per_strategy:
            faults = f", {one.violations:,} violations, {one.gaps:,} gaps"
            faults = faults if one.violations or one.gaps else ""
            yield f"  strategy {one.strategy:<3} {one.delivered:,}{faults}"
        if self.rss_mb is not None:
            yield f"  {'memory':<12} {self.rss_mb:,.0f} MB"

    def _latencies(self) -> Iterator[str]:
        if not self.latency_us:
            yield "  latency      not measured"
            return
        heads = "".join(f"{_LABELS.get(name, name):>10}" for name in _PERCENTS)
        yield f"  {'latency us':<12}{heads}"
        for stage in sorted(self.latency_us, key=_stage_order):
            cells = "".join(f"{_short(us):>10}" for _, us in _items(self.latency_us[stage]))
            yield f"  {stage:<12}{cells}"
        if (floor := self.stall_floor) is not None:
            often = floor.over_20us / floor.seconds if floor.seconds > 0 else 0.0
            yield (
                f"  this machine stalls {often:,.0f} times a second for over 20 us,"
                f" {_short(floor.longest_us)} us at most, {floor.share_lost:.2%} of the time"
            )
            if floor.ping_pong_ns is not None:
                yield f"  a cache line to another core and back takes {floor.ping_pong_ns:,.0f} ns"

    def _notes(self) -> Iterator[str]:
        yield from (f"  note: {note}" for note in self.notes)
        yield from (f"  failure: {failure}" for failure in self.failures)

    def _summary(self) -> str:
        reasons = [
            f"{count:,} {name}"
            for name, count in (
                ("undelivered", max(self.undelivered, self.produced - self.delivered)),
                ("delivered twice", max(0, self.delivered - self.produced)),
                ("violations", self.violations),
                ("gaps", self.gaps),
                ("failures", len(self.failures)),
            )
            if count
        ]
        return f"{self.verdict}: {', '.join(reasons)}" if reasons else self.verdict


def _items(values: Percentiles) -> Iterator[tuple[str, float]]:
    plain: Mapping[str, float] = msgspec.structs.asdict(values)
    return iter(plain.items())


def _stage_order(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def _short(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def save_last_report(home: Path, report: Mapping[str, Any], at: float) -> bool:
    """Write the report atomically; return False if there is no home."""
    if not home.is_dir():
        return False
    draft = home / f"{FILE}.{os.getpid()}"
    draft.write_bytes(msgspec.json.encode({"at": at, **report}))
    draft.replace(home / FILE)
    return True


def load_last_report(home: Path) -> dict[str, Any] | None:
    """Return the saved report, or None if there is no readable one."""
    try:
        return msgspec.json.decode((home / FILE).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None


class _Saved(msgspec.Struct):
    streams: tuple[StreamDigest, ...] = ()


def read_stream_digests(path: Path) -> tuple[StreamDigest, ...]:
    """Read the streams of a report that was written with --json."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
    except OSError as error:
        raise RefusedError(f"cannot read report {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"{path} is not a report: {error}") from None
    if not saved.streams:
        raise RefusedError(f"report {path} holds no streams; expected that of a run with --journal")
    return saved.streams


def compare_digests(expected: Iterable[StreamDigest], actual: Iterable[StreamDigest]) -> list[str]:
    """Return a line for each stream that differs, at most three and the number of the others."""
    before, after = _by_key(expected), _by_key(actual)
    lines = [
        f"strategy {key[0]}, producer {key[1]}, type {key[2]}:"
        f" {_shown(after.get(key))}, expected {_shown(before.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    more = [f"and {len(lines) - _SHOWN:,} more streams"] if len(lines) > _SHOWN else []
    return lines[:_SHOWN] + more


def _by_key(streams: Iterable[StreamDigest]) -> dict[tuple[int, int, int], StreamDigest]:
    return {(each.strategy, each.producer, each.msg_type): each for each in streams}


def _shown(stream: StreamDigest | None) -> str:
    return f"{stream.delivered:,} messages ({stream.digest})" if stream else "nothing"


def draw_latency_plot(
    title: str, curves: Mapping[str, Curve], stall_floor_us: float | None = None
) -> str:
    """Draw latency by percentile as SVG, a line for each stage.

    Both axes are logarithmic, so that the tail is visible. The stall floor is the longest stall of
    the machine itself.
    """
    values = [us for curve in curves.values() for _, us in curve if us > 0]
    heights = [*values, *([stall_floor_us] if stall_floor_us else [])]
    low = math.floor(math.log10(max(_FINEST_US, min(heights, default=0.1))))
    high = max(low + 1, math.ceil(math.log10(max(heights, default=10.0))))
    below = [percent for curve in curves.values() for percent, _ in curve if percent < 100]
    scale = _Scale(low, high, _nines(max(below, default=99.9)) + 0.5)
    return "\n".join(
        [
            _HEAD,
            _text(_LEFT, 30, title, size=16, weight="600"),
            *_grid(scale),
            *_stall_line(scale, stall_floor_us),
            *_lines(scale, curves),
            *_legend(curves),
            "</svg>",
            "",
        ]
    )


class _Scale:
    """Maps percentiles and microseconds to points of the plot."""

    def __init__(self, low: int, high: int, widest: float) -> None:
        self.low, self.high, self.widest = low, high, widest

    def x(self, percent: float) -> float:
        share = min(_nines(percent), self.widest) / self.widest
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, us: float) -> float:
        share = (math.log10(max(us, 10.0**self.low)) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _nines(percent: float) -> float:
    """Return 0 for p0, 1 for p90, 2 for p99, 3 for p99.9; infinity for the maximum."""
    return math.inf if percent >= 100 else -math.log10(1 - percent / 100)


def _grid(scale: _Scale) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for power in range(scale.low, scale.high + 1):
        y = scale.y(10.0**power)
        yield _line(_LEFT, y, right, y, "#dddddd")
        yield _text(_LEFT - 8, y + 4, _span(10.0**power), anchor="end")
    for percent in (tick for tick in _TICKS if _nines(tick) < scale.widest - 0.2):
        x = scale.x(percent)
        yield _line(x, _TOP, x, bottom, "#eeeeee")
        yield _text(x, bottom + 20, f"p{percent:g}", anchor="middle")
    yield _line(right, _TOP, right, bottom, "#eeeeee")
    yield _text(right, bottom + 20, "max", anchor="middle")
    yield _text((_LEFT + right) / 2, bottom + 44, "percentile", anchor="middle", colour="#666666")


def _stall_line(scale: _Scale, us: float | None) -> Iterator[str]:
    if not us:
        return
    y = scale.y(us)
    yield _line(_LEFT, y, _WIDTH - _RIGHT, y, "#cc3311", dash="6 4")
    label = f"longest stall of the machine itself: {_span(us)}"
    yield _text(_LEFT + 8, y - 6, label, colour="#cc3311", size=12)


def _lines(scale: _Scale, curves: Mapping[str, Curve]) -> Iterator[str]:
    for stage, curve in curves.items():
        points = " ".join(f"{scale.x(p):.1f},{scale.y(us):.1f}" for p, us in curve)
        colour = _COLOURS.get(stage, _OTHER)
        yield (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"'
            ' stroke-linejoin="round"/>'
        )


def _legend(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[str]:
    x = _WIDTH - _RIGHT + 16
    for row, stage in enumerate(curves):
        y = _TOP + 14 + row * 22
        colour = _COLOURS.get(stage, _OTHER)
        yield f'<rect x="{x}" y="{y - 5}" width="18" height="3" fill="{colour}"/>'
        yield _text(x + 24, y, stage)


def _span(us: float) -> str:
    for limit, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")):
        if us >= limit:
            return f"{us / limit:.3g} {unit}"
    return f"{us * 1e3:.3g} ns"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'
    )


def _text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    colour: str = "#222222",
    size: int = 13,
    weight: str = "400",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}"'
        f' font-weight="{weight}">{escape(content)}</text>'
    )
