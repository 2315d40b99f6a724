"""Report of a backtest: terminal table, JSON and HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from qts.backtest.bar_tape import BarTape
from qts.backtest.page import build_page
from qts.backtest.performance import EquityPoint, Performance
from qts.backtest.result import BacktestResult, counted
from qts.backtest.tape import Tape

if TYPE_CHECKING:
    from rich.table import Table

MAX_POINTS = 2000  # of the equity curve, in JSON and HTML


def figures(result: BacktestResult) -> Iterator[tuple[str, str]]:
    """Yield the figures as names and formatted values."""
    for each in result.strategies:
        params = (f"{name}={value}" for name, value in each.params.items())
        yield "strategy", " ".join((each.key, *params))
    data = result.data
    yield "period", f"{data.began:%Y-%m-%d %H:%M:%S} to {data.ended:%Y-%m-%d %H:%M:%S} UTC"
    what = "ticks" if data.kind == "ticks" else f"bars of {data.kind}"
    yield "data", f"{data.events:,} {what} of {data.symbols:,} symbols, digest {data.digest}"
    if data.source:
        yield "read from", data.source
    yield "speed", f"{result.events_per_s:,.0f} events/s, {result.way}"
    yield from _performance(result.performance)
    held = result.benchmark
    if held:
        yield "buy and hold", _percent(held[-1].equity / held[0].equity - 1)
    yield "orders, fills", f"{len(result.proposals):,}, {len(result.fills):,}"
    if result.still_open:
        yield "open positions", f"{len(result.still_open):,}"
    yield "signals", f"{result.signals:,}"
    yield from _reasons(result)
    if len(result.strategies) > 1:
        for each in result.strategies:
            counts = f"{each.signals:,} signals, {each.orders:,} orders, {each.trades:,} trades"
            profit = f"realised {_won(each.realised)} after {_won(each.fees)} fees"
            still = f"open {_won(each.unrealised)} in {_won(each.exposure)}"
            refused = f"; refused {counted(each.refusals)}" if each.refusals else ""
            yield f"  {each.key}", f"{counts}; {profit}, {still}{refused}"
    if result.errors:
        yield "errors", f"{result.errors:,} raised by the strategy"
    if result.stopped:
        yield "disabled", result.stopped
    yield "digest", result.digest
    if result.command:
        yield "repeat", result.command


def _reasons(result: BacktestResult) -> Iterator[tuple[str, str]]:
    """Yield every reason for which a signal did not lead to its whole order."""
    for name, reasons in (
        ("  refused", result.refusals),
        ("  not filled", result.expired),
        ("  smaller", result.cuts),
    ):
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
            yield name, f"{count:,} x {reason}"
    for code, count in sorted(result.trips.items()):
        yield "  raised", f"{count:,} x {code}"


def settings_of(result: BacktestResult) -> dict[str, Any]:
    """Return the settings that applied, as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(result.settings)
    return found


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
    held = result.benchmark
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
        "expired_orders": result.expired,
        "cut_sizes": result.cuts,
        "warnings": result.warnings,
        "trips": result.trips,
        "errors": result.errors,
        "stopped": result.stopped,
        "digest": result.digest,
        "strategies": [msgspec.to_builtins(each) for each in result.strategies],
        "data": msgspec.to_builtins(result.data),
        "settings": settings_of(result),
        "command": result.command,
        "benchmark": {
            "name": "buy and hold",
            "gain": held[-1].equity / held[0].equity - 1 if held else None,
            "equity": [[point.at, point.equity] for point in thinned(held)],
        },
        "trades": [msgspec.to_builtins(trade) for trade in result.trades],
        "still_open": [msgspec.to_builtins(trade) for trade in result.still_open],
        "equity": [[point.at, point.equity] for point in thinned(result.points)],
    }


def render_html(result: BacktestResult, tape: Tape | BarTape | None = None) -> str:
    """Return the report as one self-contained HTML page; a tape adds prices to it."""
    points, held = thinned(result.points), thinned(result.benchmark)
    return build_page(result, figures(result), points, held, tape)


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
