"""SVG plot of latency by percentile; both axes are logarithmic, so that the tail is visible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

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


def draw_latency_plot(
    title: str, curves: Mapping[str, Curve], stall_floor_us: float | None = None
) -> str:
    """Draw a line for each stage; the stall floor is the longest stall of the machine itself."""
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
