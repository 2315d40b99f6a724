"""HTML pages of reports: figures, charts and tables in one file without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from html import escape

from qts.backtest.charts import (
    drawdown_chart,
    equity_chart,
    heat_map,
    price_chart,
    profits_chart,
)
from qts.backtest.performance import EquityPoint, Trade

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

Cell = str | tuple[str, str]  # text, or text and class: gain, loss, text


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
