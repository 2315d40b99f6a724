"""HTML report of a backtest: figures, equity, drawdown and trades in one file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from qts.backtest.performance import EquityPoint
from qts.backtest.trades import Trade

WIDTH, HEIGHT, LEFT, BOTTOM = 960, 240, 110, 24
MAX_ROWS = 1000

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--dim:#667;--paper:#fff;--line:#d8dde6;
--curve:#2563c9;--gain:#1a7f4b;--loss:#c0362c}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--paper:#14181f;--line:#303846;
--curve:#6ea8fe;--gain:#4cc38a;--loss:#f2726a}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;
max-width:1000px;padding:0 1rem}
h1{font-size:1.3rem}h2{font-size:1rem;margin:1.5rem 0 .3rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1.2rem;margin:0}
dt{color:var(--dim)}dd{margin:0}
svg{width:100%;height:auto}text{fill:var(--dim);font-size:11px}
.grid{stroke:var(--line)}.curve{fill:none;stroke:var(--curve);stroke-width:1.5}
.under{fill:var(--loss);opacity:.35}.gain{fill:var(--gain)}.loss{fill:var(--loss)}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:right;padding:.15rem .5rem}
th{color:var(--dim);font-weight:normal;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left}td.gain{color:var(--gain)}td.loss{color:var(--loss)}
"""


def build_page(
    title: str,
    figures: Sequence[tuple[str, str]],
    points: Sequence[EquityPoint],
    trades: Sequence[Trade],
) -> str:
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in figures)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><dl>{listed}</dl>"
        f"<h2>Equity, won</h2>{_equity(points)}"
        f"<h2>Drawdown</h2>{_drawdown(points)}"
        f"<h2>Profit of each trade, won</h2>{_profits(trades)}"
        f"<h2>Trades</h2>{_table(trades)}</body></html>\n"
    )


class _Frame:
    """Mapping of times and values to coordinates of a plot."""

    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        self._first, self._span = first, (last - first) or 1.0
        self.low, self.high = (low, high) if high > low else (low - 1, high + 1)

    def x(self, at: float) -> float:
        return round(LEFT + (at - self._first) / self._span * (WIDTH - LEFT - 10), 1)

    def y(self, value: float) -> float:
        fraction = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - fraction * (HEIGHT - BOTTOM - 12), 1)

    def grid(self, value_format: str) -> str:
        lines = []
        for i in range(5):
            value = self.low + (self.high - self.low) * i / 4
            y = self.y(value)
            lines.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y}" y2="{y}"/>'
                f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:{value_format}}</text>'
            )
        for i in range(5):
            at = self._first + self._span * i / 4
            time = datetime.fromtimestamp(at, UTC)
            time_format = "%m-%d %H:%M" if self._span < 20 * 86_400 else "%Y-%m-%d"
            anchor = ("start", "middle", "middle", "middle", "end")[i]
            lines.append(
                f'<text x="{self.x(at)}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
                f"{time:{time_format}}</text>"
            )
        return "".join(lines)


def _svg(content: str, title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>{content}</svg>'


def _equity(points: Sequence[EquityPoint]) -> str:
    values = [point.equity for point in points]
    frame = _Frame(points[0].at, points[-1].at, min(values), max(values))
    path = " ".join(f"{frame.x(p.at)},{frame.y(p.equity)}" for p in points)
    return _svg(f'{frame.grid(",.0f")}<polyline class="curve" points="{path}"/>', "equity")


def _drawdown(points: Sequence[EquityPoint]) -> str:
    top, falls = points[0].equity, []
    for point in points:
        top = max(top, point.equity)
        falls.append(point.equity / top - 1)
    frame = _Frame(points[0].at, points[-1].at, min(min(falls), -1e-6), 0.0)
    path = " ".join(
        f"{frame.x(p.at)},{frame.y(fall)}" for p, fall in zip(points, falls, strict=True)
    )
    left, right = frame.x(points[0].at), frame.x(points[-1].at)
    area = f'<polygon class="under" points="{left},{frame.y(0)} {path} {right},{frame.y(0)}"/>'
    return _svg(frame.grid(".2%") + area, "drawdown")


def _profits(trades: Sequence[Trade]) -> str:
    if not trades:
        return "<p>no completed trades</p>"
    profits = [float(trade.profit) for trade in trades]
    times = [trade.closed_at.timestamp() for trade in trades]
    frame = _Frame(min(times), max(times), min(0.0, *profits), max(0.0, *profits))
    zero = frame.y(0)
    bars = "".join(
        f'<rect class="{"gain" if profit > 0 else "loss"}" x="{frame.x(at) - 1}" width="2"'
        f' y="{min(zero, frame.y(profit))}" height="{max(0.5, abs(zero - frame.y(profit))):.1f}"/>'
        for at, profit in zip(times, profits, strict=True)
    )
    return _svg(frame.grid(",.0f") + bars, "profit of each trade")


def _table(trades: Sequence[Trade]) -> str:
    heads = ("symbol", "opened", "closed", "quantity", "entry", "exit", "costs", "profit", "%")
    rows = "".join(_row(trade) for trade in trades[:MAX_ROWS])
    more = f"<p>first {MAX_ROWS:,} of {len(trades):,} trades</p>" if len(trades) > MAX_ROWS else ""
    head = "".join(f"<th>{name}</th>" for name in (*heads, "exit by"))
    return f"{more}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(trade: Trade) -> str:
    kind = "gain" if trade.profit > 0 else "loss"
    cells = (
        escape(trade.symbol),
        f"{trade.opened_at:%Y-%m-%d %H:%M:%S}",
        f"{trade.closed_at:%Y-%m-%d %H:%M:%S}",
        f"{trade.quantity.normalize():f}",
        f"{trade.entry:,.2f}",
        f"{trade.exit:,.2f}",
        f"{trade.fees:,.0f}",
        f"{trade.profit:,.0f}",
        f"{trade.gain:+.2%}",
        escape(trade.reason.removeprefix("EXIT_").lower()),
    )
    marked = (
        f'<td class="{kind}">{c}</td>' if i in (7, 8) else f"<td>{c}</td>"
        for i, c in enumerate(cells)
    )
    return f"<tr>{''.join(marked)}</tr>"
