"""Report of a backtest: terminal table, JSON and HTML page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from qts.backtest.bar_tape import BarTape
from qts.backtest.html_report import Cell, HtmlPage
from qts.backtest.performance import EquityPoint, Performance, Trade
from qts.backtest.result import BacktestResult, counted
from qts.backtest.tape import Tape

if TYPE_CHECKING:
    from rich.table import Table

MAX_POINTS = 2000  # of the equity curve, in JSON and HTML

MAX_CHARTS = 12
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Prices = list[tuple[float, float]]  # times and prices
_Columns = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.float64]]


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


def build_page(
    result: BacktestResult,
    figures: Iterable[tuple[str, str]],
    points: Sequence[EquityPoint],
    benchmark: Sequence[EquityPoint],
    tape: Tape | BarTape | None,
) -> str:
    """Return the page; `points` and `benchmark` are thinned, and a tape adds prices."""
    page = HtmlPage(f"{result.strategy}, {result.began:%Y-%m-%d} to {result.ended:%Y-%m-%d}")
    for warning in result.warnings:
        page.warning(warning)
    page.figures(figures)
    page.heading("Equity, won; dashed: every symbol bought in equal parts and held")
    page.equity(points, benchmark)
    page.heading("Drawdown")
    page.drawdown(points)
    page.heading("Months")
    page.table(("year", *_MONTHS, "year"), month_rows(result.points))
    page.heading("Profit of each trade, won")
    page.profits(result.trades)
    heads = ("trades", "profitable", "before costs", "costs", "profit, won")
    for title, name, groups in (
        ("Symbols", "symbol", _grouped(result.trades, "symbol")),
        ("Reasons of exits", "exit by", _grouped(result.trades, "reason")),
        ("Strategies", "strategy", _grouped(result.trades, "strategy")),
    ):
        if groups:
            page.heading(title)
            page.table((name, *heads), (_group_row(key, each) for key, each in groups))
    if tape is not None:
        _add_prices(page, result, tape)
    _add_reasons(page, result)
    page.heading("Trades")
    page.trades(result.trades)
    page.details("Settings", settings_lines(result))
    return page.render()


def month_rows(points: Sequence[EquityPoint]) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each year: the gain of each month, and of the year."""
    ends: dict[tuple[int, int], float] = {}
    for point in points:
        day = datetime.fromtimestamp(point.at, UTC)
        ends[day.year, day.month] = point.equity
    values = [points[0].equity, *ends.values()]
    gains = {
        month: end / start - 1 for month, (start, end) in zip(ends, pairwise(values), strict=True)
    }
    for year in sorted({year for year, _ in gains}):
        whole = 1.0
        row: list[Cell] = [str(year)]
        for month in range(1, 13):
            gain = gains.get((year, month))
            whole *= 1 + (gain or 0.0)
            row.append(_gain(gain))
        yield (*row, _gain(whole - 1))


def _gain(gain: float | None) -> Cell:
    if gain is None:
        return ""
    return f"{gain:+.2%}", "gain" if gain > 0 else "loss" if gain < 0 else ""


def _grouped(trades: Sequence[Trade], field: str) -> list[tuple[str, list[Trade]]]:
    """Return the trades by a field, the largest profit first."""
    found: defaultdict[str, list[Trade]] = defaultdict(list)
    for trade in trades:
        found[getattr(trade, field)].append(trade)
    return sorted(found.items(), key=lambda item: -_profit(item[1]))


def _profit(trades: Sequence[Trade]) -> Decimal:
    return sum((trade.profit for trade in trades), Decimal(0))


def _group_row(key: str, trades: Sequence[Trade]) -> tuple[Cell, ...]:
    profit = _profit(trades)
    costs = sum((trade.fees for trade in trades), Decimal(0))
    return (
        key.removeprefix("EXIT_").lower() if key.startswith("EXIT_") else key,
        f"{len(trades):,}",
        f"{sum(trade.profit > 0 for trade in trades) / len(trades):.0%}",
        f"{profit + costs:,.0f}",
        f"{costs:,.0f}",
        (f"{profit:,.0f}", "gain" if profit > 0 else "loss"),
    )


def _add_prices(page: HtmlPage, result: BacktestResult, tape: Tape | BarTape) -> None:
    """Add the prices of the symbols that were traded most, with entries and exits."""
    trades = (*result.trades, *result.still_open)
    counts: defaultdict[str, int] = defaultdict(int)
    for trade in trades:
        counts[trade.symbol] += 1
    symbols = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))[:MAX_CHARTS]
    if not symbols:
        return
    more = f"; {len(symbols)} of {len(counts)} symbols" if len(counts) > len(symbols) else ""
    page.heading(f"Prices, won, with entries and exits{more}")
    for symbol, prices in price_series(tape, symbols).items():
        page.text(symbol)
        page.prices(symbol, prices, [trade for trade in trades if trade.symbol == symbol])


def _add_reasons(page: HtmlPage, result: BacktestResult) -> None:
    rows = [
        (name, f"{count:,}", (reason, "text"))
        for name, reasons in (
            ("signal refused", result.refusals),
            ("order not filled", result.expired),
            ("order smaller than asked", result.cuts),
            ("code raised", result.trips),
        )
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1])
    ]
    if rows:
        page.heading("Signals and orders that were not carried out as asked")
        page.table(("what", "times", "why"), rows)


def settings_lines(result: BacktestResult) -> Iterator[tuple[str, str]]:
    """Yield every setting with its full name."""

    def walk(value: Any, name: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict):
            for key, each in value.items():
                yield from walk(each, f"{name}.{key}" if name else key)
        else:
            yield name, str(value)

    yield from walk(msgspec.to_builtins(result.settings), "")


def price_series(
    tape: Tape | BarTape, symbols: Sequence[str], points: int = 600
) -> dict[str, Prices]:
    """Return about so many prices of each symbol, the last of equal spans of time.

    Reads the tape once more, twice if it does not say when it ends.
    """
    first, last = _time_span(tape)
    bucket_s = max((last - first) / points, 1e-6)
    found: dict[str, dict[int, tuple[float, float]]] = {symbol: {} for symbol in symbols}
    for symbol, price, at in _columns(tape):
        for name, series in found.items():
            if name not in tape.symbols:
                continue
            rows = np.flatnonzero(symbol == tape.symbols.index(name))
            if not len(rows):
                continue
            bucket = ((at[rows] - first) // bucket_s).astype(np.int64)
            is_last = np.concatenate([np.diff(bucket) > 0, [True]])
            chosen = rows[is_last]
            values = zip(at[chosen].tolist(), price[chosen].tolist(), strict=True)
            series.update(zip(bucket[is_last].tolist(), values, strict=True))
    return {name: [series[key] for key in sorted(series)] for name, series in found.items()}


def _columns(tape: Tape | BarTape) -> Iterator[_Columns]:
    if isinstance(tape, BarTape):
        yield tape.rows["symbol"], tape.rows["close"], tape.rows["at"]
        return
    for chunk in tape:
        valid = (chunk.price > 0) & np.isfinite(chunk.price)
        yield chunk.symbol[valid], chunk.price[valid], chunk.at[valid]


def _time_span(tape: Tape | BarTape) -> tuple[float, float]:
    first, last = np.inf, -np.inf
    for _, _, at in _columns(tape):
        if len(at):
            first, last = min(first, float(at[0])), float(at[-1])
    return first, last
