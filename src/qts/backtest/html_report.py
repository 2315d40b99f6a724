"""HTML pages of reports: figures, charts and tables in one file without scripts.

Charts are SVG that needs no network and is readable from 390 px of width on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from html import escape

from qts.backtest.performance import EquityPoint, Trade

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 280, 200, 26, 38
MARK = 6  # half of the width of an entry or exit
MAX_ROWS = 1000
Cell = str | tuple[str, str]  # text, or text and class: gain, loss, text

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--dim:#667;--paper:#fff;--line:#d8dde6;
--curve:#2563c9;--gain:#1a7f4b;--loss:#c0362c}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--paper:#14181f;--line:#303846;
--curve:#6ea8fe;--gain:#4cc38a;--loss:#f2726a}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;
max-width:1000px;padding:0 1rem}
h1{font-size:1.3rem}h2{font-size:1rem;margin:1.5rem 0 .3rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1.2rem;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
svg{width:100%;height:auto}text{fill:var(--dim);font-size:13px}
.grid{stroke:var(--line)}.curve{fill:none;stroke:var(--curve);stroke-width:1.5}
.other,.price{fill:none;stroke:var(--dim);stroke-width:1.2}.other{stroke-dasharray:5 4}
.entry,.cell{fill:var(--curve)}.best{fill:none;stroke:var(--ink);stroke-width:3}
.warning{border-left:4px solid var(--loss);padding:.2rem .8rem;margin:.5rem 0}
details{margin:1rem 0}summary{cursor:pointer;color:var(--dim)}
.under{fill:var(--loss);opacity:.35}.gain{fill:var(--gain)}.loss{fill:var(--loss)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:right;padding:.15rem .5rem}
th{color:var(--dim);font-weight:normal;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left}td.gain{color:var(--gain)}td.loss{color:var(--loss)}
td.text{text-align:left;white-space:normal}
@media(max-width:600px){body{margin:1rem auto;padding:0 .8rem}text{font-size:28px}
.minor{display:none}.curve{stroke-width:3}.other,.price{stroke-width:2.5}
dl{gap:.1rem .8rem}td,th{white-space:nowrap}}
"""


class HtmlPage:
    """Self-contained page, built from top to bottom; every text is escaped."""

    def __init__(self, title: str, zone: tzinfo = UTC) -> None:
        self._title = title
        self._zone = zone
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def figures(self, figures: Iterable[tuple[str, str]]) -> None:
        """Add names and values."""
        rows = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in figures
        )
        self._parts.append(f"<dl>{rows}</dl>")

    def warning(self, text: str) -> None:
        self._parts.append(f'<p class="warning">{escape(text)}</p>')

    def details(self, title: str, figures: Iterable[tuple[str, str]]) -> None:
        """Add names and values that are folded."""
        self._parts.append(f"<details><summary>{escape(title)}</summary>")
        self.figures(figures)
        self._parts.append("</details>")

    def equity(self, points: Sequence[EquityPoint], benchmark: Sequence[EquityPoint] = ()) -> None:
        self._parts.append(equity_chart(points, self._zone, benchmark))

    def prices(
        self, symbol: str, prices: Sequence[tuple[float, float]], trades: Sequence[Trade]
    ) -> None:
        self._parts.append(price_chart(symbol, prices, trades, self._zone))

    def heat_map(
        self,
        names: tuple[str, str],
        labels: tuple[Sequence[str], Sequence[str]],
        cells: Mapping[tuple[int, int], float],
        best: tuple[int, int],
    ) -> None:
        self._parts.append(heat_map(names, labels, cells, best))

    def drawdown(self, points: Sequence[EquityPoint]) -> None:
        self._parts.append(drawdown_chart(points, self._zone))

    def profits(self, trades: Sequence[Trade]) -> None:
        self._parts.append(profits_chart(trades, self._zone))

    def trades(self, trades: Sequence[Trade]) -> None:
        heads = ("symbol", "opened", "closed", "quantity", "entry", "exit", "costs", "profit", "%")
        if len(trades) > MAX_ROWS:
            self.text(f"first {MAX_ROWS:,} of {len(trades):,} trades")
        rows = [_trade_row(trade, self._zone) for trade in trades[:MAX_ROWS]]
        self.table((*heads, "exit by"), rows)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        head = "".join(f"<th>{escape(name)}</th>" for name in heads)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        self._parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def render(self) -> str:
        title = escape(self._title)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{_STYLE}</style></head><body>"
            f"<h1>{title}</h1>{''.join(self._parts)}</body></html>\n"
        )


def _trade_row(trade: Trade, zone: tzinfo) -> tuple[Cell, ...]:
    kind = "gain" if trade.profit > 0 else "loss"
    return (
        trade.symbol,
        f"{trade.opened_at.astimezone(zone):%Y-%m-%d %H:%M:%S}",
        f"{trade.closed_at.astimezone(zone):%Y-%m-%d %H:%M:%S}",
        f"{trade.quantity.normalize():f}",
        f"{trade.entry:,.2f}",
        f"{trade.exit:,.2f}",
        f"{trade.fees:,.0f}",
        (f"{trade.profit:,.0f}", kind),
        (f"{trade.gain:+.2%}", kind),
        trade.reason.removeprefix("EXIT_").lower(),
    )


def _cell(cell: Cell) -> str:
    text, kind = (cell, "") if isinstance(cell, str) else cell
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


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
