"""Charts of the report as SVG: no scripts, no network, readable from 390 px of width on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from html import escape

from qts.backtest.performance import EquityPoint, Trade

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 280, 200, 26, 38
MARK = 6  # half of the width of an entry or exit


class PlotFrame:
    """Mapping of times and values to coordinates of a plot."""

    def __init__(self, span: tuple[float, float], low: float, high: float, zone: tzinfo) -> None:
        first, last = span
        self._first, self._span, self._zone = first, (last - first) or 1.0, zone
        self.low, self.high = (low, high) if high > low else (low - 1, high + 1)

    def x(self, at: float) -> float:
        return round(LEFT + (at - self._first) / self._span * (WIDTH - LEFT - 10), 1)

    def y(self, value: float) -> float:
        fraction = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - fraction * (HEIGHT - BOTTOM - TOP), 1)

    def grid(self, value_format: str) -> str:
        lines = []
        for i in range(5):
            value = self.low + (self.high - self.low) * i / 4
            y, minor = self.y(value), " class='minor'" if i % 2 else ""
            lines.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y}" y2="{y}"/>'
                f'<text{minor} x="{LEFT - 8}" y="{y + 5}" text-anchor="end">'
                f"{value:{value_format}}</text>"
            )
        for i in range(5):
            at = self._first + self._span * i / 4
            time = datetime.fromtimestamp(at, self._zone)
            time_format = "%m-%d %H:%M" if self._span < 20 * 86_400 else "%Y-%m-%d"
            anchor = ("start", "middle", "middle", "middle", "end")[i]
            minor = " class='minor'" if i % 2 else ""
            lines.append(
                f'<text{minor} x="{self.x(at)}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
                f"{time:{time_format}}</text>"
            )
        return "".join(lines)

    def line(self, points: Sequence[tuple[float, float]], kind: str = "curve") -> str:
        path = " ".join(f"{self.x(at)},{self.y(value)}" for at, value in points)
        return f'<polyline class="{kind}" points="{path}"/>'


def equity_chart(
    points: Sequence[EquityPoint], zone: tzinfo, benchmark: Sequence[EquityPoint] = ()
) -> str:
    """Return the equity curve, with buy and hold as a second line if it is given."""
    both = [point.equity for point in (*points, *benchmark)]
    times = [point.at for point in (*points, *benchmark)]
    frame = PlotFrame((min(times), max(times)), min(both), max(both), zone)
    lines = frame.line([(p.at, p.equity) for p in benchmark], "other") if benchmark else ""
    lines += frame.line([(p.at, p.equity) for p in points])
    return _svg(frame.grid(",.0f") + lines, "equity")


def drawdown_chart(points: Sequence[EquityPoint], zone: tzinfo) -> str:
    top, falls = points[0].equity, []
    for point in points:
        top = max(top, point.equity)
        falls.append(point.equity / top - 1)
    frame = PlotFrame((points[0].at, points[-1].at), min(min(falls), -1e-6), 0.0, zone)
    path = " ".join(
        f"{frame.x(p.at)},{frame.y(fall)}" for p, fall in zip(points, falls, strict=True)
    )
    left, right = frame.x(points[0].at), frame.x(points[-1].at)
    area = f'<polygon class="under" points="{left},{frame.y(0)} {path} {right},{frame.y(0)}"/>'
    return _svg(frame.grid(".2%") + area, "drawdown")


def profits_chart(trades: Sequence[Trade], zone: tzinfo) -> str:
    if not trades:
        return "<p>no completed trades</p>"
    profits = [float(trade.profit) for trade in trades]
    times = [trade.closed_at.timestamp() for trade in trades]
    frame = PlotFrame((min(times), max(times)), min(0.0, *profits), max(0.0, *profits), zone)
    zero = frame.y(0)
    bars = "".join(
        f'<rect class="{"gain" if profit > 0 else "loss"}" x="{frame.x(at) - 1}" width="2"'
        f' y="{min(zero, frame.y(profit))}" height="{max(0.5, abs(zero - frame.y(profit))):.1f}"/>'
        for at, profit in zip(times, profits, strict=True)
    )
    return _svg(frame.grid(",.0f") + bars, "profit of each trade")


def price_chart(
    symbol: str, prices: Sequence[tuple[float, float]], trades: Sequence[Trade], zone: tzinfo
) -> str:
    """Return the price of a symbol with its entries (▲) and exits (▼, by their profit)."""
    marks = []
    for trade in trades:
        marks.append((trade.opened_at.timestamp(), float(trade.entry), "entry", True))
        if trade.exit:
            kind = "gain" if trade.profit > 0 else "loss"
            marks.append((trade.closed_at.timestamp(), float(trade.exit), kind, False))
    values = [price for _, price in prices] + [price for _, price, _, _ in marks]
    times = [at for at, _ in prices] + [at for at, _, _, _ in marks]
    frame = PlotFrame((min(times), max(times)), min(values), max(values), zone)
    shapes = "".join(
        _mark(frame.x(at), frame.y(price), kind, is_entry=is_entry)
        for at, price, kind, is_entry in marks
    )
    return _svg(frame.grid(",.0f") + frame.line(list(prices), "price") + shapes, f"price {symbol}")


def heat_map(
    names: tuple[str, str],
    labels: tuple[Sequence[str], Sequence[str]],
    cells: Mapping[tuple[int, int], float],
    best: tuple[int, int],
) -> str:
    """Return a field of cells, the higher the stronger; `best` has a frame, rows go upwards."""
    columns, rows = labels
    low, high = min(cells.values()), max(cells.values())
    width, height = (WIDTH - LEFT - 10) / len(columns), (2 * HEIGHT - TOP - BOTTOM) / len(rows)

    def corner(column: int, row: int) -> tuple[float, float]:
        return LEFT + column * width, 2 * HEIGHT - BOTTOM - (row + 1) * height

    shapes = []
    for (column, row), value in cells.items():
        x, y = corner(column, row)
        strength = 0.06 + 0.94 * ((value - low) / (high - low) if high > low else 1.0)
        where = ", ".join(
            f"{name} {label}"
            for name, label in zip(names, (columns[column], rows[row]), strict=True)
            if name
        )
        shapes.append(
            f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f' fill-opacity="{strength:.3f}"><title>{escape(where)}: {value:.4g}</title></rect>'
        )
    x, y = corner(*best)
    shapes.append(
        f'<rect class="best" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    )
    for number, label in _some(columns):
        x = LEFT + (number + 0.5) * width
        shapes.append(
            f'<text x="{x:.1f}" y="{2 * HEIGHT - 18}" text-anchor="middle">{escape(label)}</text>'
        )
    for number, label in _some(rows):
        y = corner(0, number)[1] + height / 2 + 5
        shapes.append(f'<text x="{LEFT - 8}" y="{y:.1f}" text-anchor="end">{escape(label)}</text>')
    shapes.append(
        f'<text x="{WIDTH - 10}" y="{2 * HEIGHT - 2}" text-anchor="end">{escape(names[0])} →</text>'
    )
    if names[1]:
        shapes.append(f'<text x="{LEFT}" y="16">{escape(names[1])} ↑</text>')
    return _svg("".join(shapes), "heat map", 2 * HEIGHT)


def _some(labels: Sequence[str]) -> list[tuple[int, str]]:
    """Return at most seven labels with their positions."""
    step = -(-len(labels) // 7)
    return [(number, labels[number]) for number in range(0, len(labels), step)]


def _mark(x: float, y: float, kind: str, *, is_entry: bool) -> str:
    """Return a triangle that points at the price: from below an entry, from above an exit."""
    tip = 2 * MARK if is_entry else -2 * MARK
    points = f"{x},{y} {x - MARK},{y + tip} {x + MARK},{y + tip}"
    return f'<polygon class="{kind}" points="{points}"/>'


def _svg(content: str, title: str, height: int = HEIGHT) -> str:
    label = escape(title)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img"><title>{label}</title>{content}</svg>'
