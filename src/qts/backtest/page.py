"""Page of a backtest: what was earned, when, where and why, and everything that shaped it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec

from qts.backtest.bar_tape import BarTape
from qts.backtest.html_report import Cell, HtmlPage
from qts.backtest.performance import EquityPoint, Trade
from qts.backtest.price_series import price_series
from qts.backtest.result import BacktestResult
from qts.backtest.tape import Tape

MAX_CHARTS = 12
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


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
