"""Rows as an SVG chart: two bars each, ours and the peer's, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from benchmarks.report import Row

_WIDTH, _LEFT, _RIGHT, _TOP = 1000, 320, 90, 60
_STEP, _BAR = 54, 16
_OURS, _PEER, _INK = "#4477aa", "#bbbbbb", "#222222"


def bars(title: str, rows: Sequence[Row]) -> str:
    height = _TOP + len(rows) * _STEP + 20
    values = [value for row in rows for value in (row.ours, row.peer) if value > 0]
    low = math.floor(math.log10(min(values, default=1)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=10))))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
            f' width="{_WIDTH}" height="{height}" font-family="system-ui, sans-serif"'
            f' font-size="13"><rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(20, 30, title, size=16),
            *(part for place, row in enumerate(rows) for part in _pair(place, row, low, high)),
            "</svg>",
            "",
        ]
    )


def _pair(place: int, row: Row, low: int, high: int) -> Iterator[str]:
    y = _TOP + place * _STEP
    yield _text(_LEFT - 10, y + 13, row.name, anchor="end")
    yield _text(_LEFT - 10, y + 30, f"{row.peer_name}, {row.unit}", anchor="end", colour="#666666")
    for offset, value, colour in ((0, row.ours, _OURS), (_BAR + 2, row.peer, _PEER)):
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        width = max(2.0, share * (_WIDTH - _LEFT - _RIGHT))
        yield (
            f'<rect x="{_LEFT}" y="{y + offset}" width="{width:.1f}" height="{_BAR}"'
            f' fill="{colour}"/>'
        )
        yield _text(_LEFT + width + 6, y + offset + 13, f"{value:,.3g}")


def _text(
    x: float, y: float, content: str, *, anchor: str = "start", colour: str = _INK, size: int = 13
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
        f' font-size="{size}">{escape(content)}</text>'
    )
