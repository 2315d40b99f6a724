"""Latency by percentile as an SVG chart: a line for each engine, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 480, 90, 30, 60, 60
_COLOURS = ("#4477aa", "#aa3377", "#ccbb44", "#228833")
_PERCENTILES = (0.0, 25, 50, 75, 90, 95, 99, 99.5, 99.9)
_SHOWN = (50.0, 90.0, 99.0, 99.9)
_WIDEST = 3.3  # nines; the maximum is at the right edge


def percentiles(title: str, ms: Mapping[str, npt.NDArray[np.float64]]) -> str:
    low = math.floor(math.log10(max(1e-4, min(float(each.min()) for each in ms.values()))))
    high = max(low + 1, math.ceil(math.log10(max(float(each.max()) for each in ms.values()))))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
            f' width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, sans-serif"'
            f' font-size="13"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            _text(20, 30, title, size=16),
            *_grid(low, high),
            *(
                part
                for place, (name, values) in enumerate(ms.items())
                for part in _line(place, name, values, low, high)
            ),
            "</svg>",
            "",
        ]
    )


def _grid(low: int, high: int) -> Iterator[str]:
    for power in range(low, high + 1):
        y = _y(10.0**power, low, high)
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>'
        yield _text(_LEFT - 8, y + 4, f"{10.0**power:g} ms", anchor="end")
    for percent in _SHOWN:
        x = _x(percent)
        yield f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#eeeeee"/>'
        yield _text(x, _HEIGHT - _BOTTOM + 20, f"p{percent:g}", anchor="middle")
    yield _text(_WIDTH - _RIGHT, _HEIGHT - _BOTTOM + 20, "max", anchor="end")


def _line(
    place: int, name: str, values: npt.NDArray[np.float64], low: int, high: int
) -> Iterator[str]:
    points = [(_x(each), float(np.percentile(values, each))) for each in _PERCENTILES]
    points.append((_WIDTH - _RIGHT, float(values.max())))
    path = " ".join(f"{x:.1f},{_y(value, low, high):.1f}" for x, value in points)
    colour = _COLOURS[place % len(_COLOURS)]
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    yield _text(_LEFT + 12, _TOP + 18 + 18 * place, name, colour=colour)


def _x(percent: float) -> float:
    share = min(-math.log10(1 - percent / 100), _WIDEST) / _WIDEST
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(ms: float, low: int, high: int) -> float:
    share = (math.log10(max(ms, 10.0**low)) - low) / (high - low)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    colour: str = "#222222",
    size: int = 13,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
        f' font-size="{size}">{escape(content)}</text>'
    )
