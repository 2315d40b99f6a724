"""Report of a backtest: terminal table, JSON and HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from qts.backtest.html_report import build_page
from qts.backtest.performance import EquityPoint, Performance
from qts.backtest.run import BacktestResult

if TYPE_CHECKING:
    from rich.table import Table

MAX_POINTS = 2000  # of the equity curve, in JSON and HTML
MAX_REASONS = 6


def figures(result: BacktestResult) -> Iterator[tuple[str, str]]:
    """Yield the figures as names and formatted values."""
    params = (f"{name}={value}" for name, value in result.params.items())
    yield "strategy", " ".join((result.strategy, *params))
    yield "period", f"{result.began:%Y-%m-%d %H:%M:%S} to {result.ended:%Y-%m-%d %H:%M:%S} UTC"
    yield "events", f"{result.events:,} of {result.symbols:,} symbols"
    yield "speed", f"{result.events_per_s:,.0f} events/s, {result.way}"
    yield from _performance(result.performance)
    yield "orders, fills", f"{len(result.proposals):,}, {len(result.fills):,}"
    if result.still_open:
        yield "open positions", f"{len(result.still_open):,}"
    yield "signals", f"{result.signals:,}"
    for code, count in sorted(result.refusals.items(), key=lambda item: -item[1])[:MAX_REASONS]:
        yield "  refused", f"{count:,} x {code}"
    for code, count in sorted(result.trips.items()):
        yield "  raised", f"{count:,} x {code}"
    if result.errors:
        yield "errors", f"{result.errors:,} raised by the strategy"
    if result.stopped:
        yield "disabled", result.stopped
    yield "digest", result.digest


def _performance(values: Performance) -> Iterator[tuple[str, str]]:
    yield "equity", f"{values.start_equity:,.0f} → {values.end_equity:,.0f} won"
    yield "gain", _percent(values.gain)
    yield "CAGR", _percent(values.cagr)
    span = _span(values.max_drawdown_s)
    yield "max drawdown", f"{_percent(-values.max_drawdown)}, below a previous high for {span}"
    yield "Sharpe ratio", _number(values.sharpe)
    yield "trades", f"{values.trades:,}"
    yield "win rate", _percent(values.win_rate, sign=False)
    yield "profit factor", _number(values.profit_factor)
    yield "best, worst trade", f"{_won(values.best)}, {_won(values.worst)}"
    yield "average trade", _won(values.average)
    yield "costs", _won(values.costs)
    yield "turnover", f"{values.turnover:.2f} x the start"
    yield "exposure", _percent(values.exposure, sign=False)


def render_table(result: BacktestResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    losing = result.performance.gain < 0
    for name, value in figures(result):
        style = ("red" if losing else "green") if name in ("equity", "gain") else ""
        table.add_row(name, Text(value, "bold red" if name in ("errors", "disabled") else style))
    return table


def to_json(result: BacktestResult) -> dict[str, Any]:
    """Return the report as JSON values; an undefined figure is null, and infinity is "inf"."""
    performance = {
        name: "inf" if value == math.inf else value
        for name, value in msgspec.structs.asdict(result.performance).items()
    }
    return {
        "strategy": result.strategy,
        "params": result.params,
        "way": result.way,
        "symbols": result.symbols,
        "events": result.events,
        "seconds": round(result.seconds, 6),
        "tape_seconds": round(result.tape_seconds, 6),
        "events_per_s": round(result.events_per_s),
        "began": result.began,
        "ended": result.ended,
        "performance": performance,
        "signals": result.signals,
        "orders": len(result.proposals),
        "fills": len(result.fills),
        "refusals": result.refusals,
        "trips": result.trips,
        "errors": result.errors,
        "stopped": result.stopped,
        "digest": result.digest,
        "trades": [msgspec.to_builtins(trade) for trade in result.trades],
        "still_open": [msgspec.to_builtins(trade) for trade in result.still_open],
        "equity": [[point.at, point.equity] for point in thinned(result.points)],
    }


def render_html(result: BacktestResult) -> str:
    """Return the report as one self-contained HTML page."""
    title = f"{result.strategy}, {result.began:%Y-%m-%d} to {result.ended:%Y-%m-%d}"
    return build_page(title, list(figures(result)), thinned(result.points), result.trades)


def thinned(points: Sequence[EquityPoint], limit: int = MAX_POINTS) -> list[EquityPoint]:
    """Return about `limit` points, with the lowest and highest of every stretch among them."""
    if len(points) <= limit:
        return list(points)
    stretch = -(-len(points) // (limit // 2))
    kept: list[EquityPoint] = []
    for start in range(0, len(points), stretch):
        part = range(start, min(start + stretch, len(points)))
        low = min(part, key=lambda i: points[i].equity)
        high = max(part, key=lambda i: points[i].equity)
        kept += [points[i] for i in sorted({low, high})]
    return [points[0], *(p for p in kept if points[0].at < p.at < points[-1].at), points[-1]]


def _percent(value: float | None, *, sign: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:+.2%}" if sign else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else "∞" if value == math.inf else f"{value:.2f}"


def _won(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} won"


def _span(seconds: float) -> str:
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"
