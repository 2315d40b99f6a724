"""A backtest's result for people and programs: terminal, JSON, and a page of its own (page.py)."""

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

MOST_POINTS = 2000  # of the curve, in what is written
MOST_REASONS = 6

__all__ = ["figures", "render_html", "render_table", "to_json"]


def figures(result: BacktestResult) -> Iterator[tuple[str, str]]:
    """Names and values, as a person reads them."""
    found = result.performance
    yield "strategy", f"{result.strategy} {_params(result.params)}".strip()
    yield "period", f"{result.began:%Y-%m-%d %H:%M:%S} to {result.ended:%Y-%m-%d %H:%M:%S} UTC"
    yield "events", f"{result.events:,} of {result.symbols:,} symbols"
    yield "speed", f"{result.events_per_s:,.0f} events/s, {result.way}"
    yield from _performance(found)
    yield "orders, fills", f"{len(result.proposals):,}, {len(result.fills):,}"
    if result.still_open:
        yield "still held", f"{len(result.still_open):,} symbols"
    yield "signals", f"{result.signals:,}"
    for code, count in sorted(result.refusals.items(), key=lambda item: -item[1])[:MOST_REASONS]:
        yield "  refused", f"{count:,} x {code}"
    for code, count in sorted(result.trips.items()):
        yield "  told of", f"{count:,} x {code}"
    if result.errors:
        yield "errors", f"{result.errors:,} raised by the strategy"
    if result.stopped:
        yield "given up", result.stopped
    yield "digest", result.digest


def _performance(found: Performance) -> Iterator[tuple[str, str]]:
    yield "equity", f"{found.start_equity:,.0f} → {found.end_equity:,.0f} won"
    yield "gain", _percent(found.gain)
    yield "a year (CAGR)", _percent(found.cagr)
    yield (
        "max drawdown",
        f"{_percent(-found.max_drawdown)}, below a former height for {_span(found.max_drawdown_s)}",
    )
    yield "Sharpe ratio", _number(found.sharpe)
    yield "trades", f"{found.trades:,}"
    yield "win rate", _percent(found.win_rate, sign=False)
    yield "profit factor", _number(found.profit_factor)
    yield "best, worst trade", f"{_won(found.best)}, {_won(found.worst)}"
    yield "average trade", _won(found.average)
    yield "costs", _won(found.costs)
    yield "turnover", f"{found.turnover:.2f} x the start"
    yield "exposure", _percent(found.exposure, sign=False)


def render_table(result: BacktestResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(show_header=False, box=None, pad_edge=False)
    made.add_column(style="dim")
    made.add_column()
    losing = result.performance.gain < 0
    for name, value in figures(result):
        style = ("red" if losing else "green") if name in ("equity", "gain") else ""
        made.add_row(name, Text(value, "bold red" if name in ("errors", "given up") else style))
    return made


def to_json(result: BacktestResult) -> dict[str, Any]:
    """Numbers as they are; what has no number is null, and infinity is "inf"."""
    shown = {
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
        "performance": shown,
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
    """One HTML file that needs no other."""
    title = f"{result.strategy}, {result.began:%Y-%m-%d} to {result.ended:%Y-%m-%d}"
    return build_page(title, list(figures(result)), thinned(result.points), result.trades)


def thinned(points: Sequence[EquityPoint], most: int = MOST_POINTS) -> list[EquityPoint]:
    """Fewer points, with the lowest and the highest of every stretch among them."""
    if len(points) <= most:
        return list(points)
    stretch = -(-len(points) // (most // 2))
    kept: list[EquityPoint] = []
    for start in range(0, len(points), stretch):
        part = range(start, min(start + stretch, len(points)))
        low = min(part, key=lambda i: points[i].equity)
        high = max(part, key=lambda i: points[i].equity)
        kept += [points[i] for i in sorted({low, high})]
    return [points[0], *(p for p in kept if points[0].at < p.at < points[-1].at), points[-1]]


def _params(params: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in params.items())


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
