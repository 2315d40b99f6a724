"""Check of a catalogue: damaged files and rows, and time without data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qts.domain import Market, OperationError
from qts.feed import SEOUL, TradingCalendar
from qts.history.catalogue import BarCatalogue
from qts.history.catalogue_file import TICKS, CatalogueFile, Rows, Series, period_range, read_file
from qts.history.ranges import Range, merge, subtract


class Finding(msgspec.Struct, frozen=True):
    """One remark on a file or series; `damage` means that its rows cannot be trusted."""

    where: str
    problem: str
    damage: bool


def check_catalogue(catalogue: BarCatalogue, calendar: TradingCalendar) -> Iterator[Finding]:
    """Yield what is wrong or missing, series by series."""
    for series in catalogue.series():
        covered: list[Range] = []
        traded: set[date] = set()
        for path in catalogue.files(series):
            try:
                content = read_file(path, series)
                problems = list(_problems(path, series, content))
            except OperationError as error:
                yield Finding(str(path), str(error), damage=True)
                continue
            for problem in problems:
                yield Finding(str(path), problem, damage=True)
            covered += content.covered
            traded |= _days(content.rows["at"])
        name = f"{series.market.lower()} {series.kind} {series.symbol}"
        for problem in _gaps(series, merge(covered), traded, calendar):
            yield Finding(name, problem, damage=False)


def _problems(path: Path, series: Series, content: CatalogueFile) -> Iterator[str]:
    rows = content.rows
    if not len(rows):
        return
    at, (start, end) = rows["at"], period_range(path, series.kind)
    steps = np.diff(at)
    if (steps < 0).any():
        yield f"rows are not in order of time, first after {_time(at[:-1][steps < 0])}"
    if series.kind != TICKS:
        if (steps == 0).any():
            yield f"{int((steps == 0).sum())} bars twice, first at {_time(at[1:][steps == 0])}"
        yield from _bar_problems(rows)
    elif (bad := ~(np.isfinite(rows["price"]) & (rows["price"] > 0))).any():
        yield f"{int(bad.sum())} ticks without a price, first at {_time(at[bad])}"
    outside = (at <= start) | (at > end)
    if outside.any():
        yield f"{int(outside.sum())} rows of another period, first at {_time(at[outside])}"
    starts = np.array([low for low, _ in content.covered] or [np.inf])
    ends = np.array([high for _, high in content.covered] or [-np.inf])
    index = np.searchsorted(starts, at, side="left") - 1
    uncovered = (index < 0) | (at > ends[np.maximum(index, 0)])
    if uncovered.any():
        yield f"{int(uncovered.sum())} rows outside of the covered ranges"


def _bar_problems(rows: Rows) -> Iterator[str]:
    prices = np.stack([rows[name] for name in ("open", "high", "low", "close")])
    with np.errstate(invalid="ignore"):
        wrong = {
            "a price that is not positive": ~(np.isfinite(prices) & (prices > 0)).all(axis=0),
            "a high below another price": prices.max(axis=0) > rows["high"],
            "a low above another price": prices.min(axis=0) < rows["low"],
            "a volume that is not a number or negative": ~(rows["volume"] >= 0),
        }
    for what, bad in wrong.items():
        if bad.any():
            yield f"{int(bad.sum())} bars with {what}, first at {_time(rows['at'][bad])}"


def _gaps(
    series: Series, covered: list[Range], traded: set[date], calendar: TradingCalendar
) -> Iterator[str]:
    for (_, low), (high, _) in pairwise(covered):
        yield f"not downloaded: {_time([low])} to {_time([high])}"
    if series.market is not Market.KRX or not covered:
        return
    first, last = (datetime.fromtimestamp(covered[n][n], SEOUL).date() for n in (0, -1))
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    read = [day for day in days if not subtract(_session(day), covered)]
    silent = [day for day in read if calendar.trades_on(day) and day not in traded]
    if silent:
        yield f"no trade on {len(silent)} trading days, the last is {silent[-1]}"
    closed = sorted(day for day in traded if not calendar.trades_on(day))
    if closed:
        yield f"bars on {len(closed)} days without a session, the last is {closed[-1]}"


def _session(day: date) -> Range:
    """Return the hours of a day in which its bars close."""
    opens = datetime(day.year, day.month, day.day, 9, tzinfo=SEOUL).timestamp()
    return opens, opens + 6.5 * 3600


def _days(at: Any) -> set[date]:
    ordinals = np.unique(((at + 9 * 3600 - 1) // 86_400).astype(np.int64))
    return {date(1970, 1, 1) + timedelta(days=int(day)) for day in ordinals}


def _time(at: Any) -> str:
    return datetime.fromtimestamp(float(at[0]), UTC).strftime("%Y-%m-%d %H:%M UTC")
