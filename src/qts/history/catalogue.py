"""Catalogue of past bars and ticks: Parquet files under the home, their import and their check.

    catalogue/upbit/1m/KRW-BTC/2026-10.parquet
              market  kind  symbol  month of minutes, year of days, day of ticks (UTC)

A file holds rows and, in its metadata, the ranges that they cover: time without a row inside a
covered range is time without a trade, time outside of all ranges was never read. Both are written
at once (temporary file, fsync, rename), so that a process may be killed at any moment. `write`
replaces a range as a whole; repeating it changes nothing.

One process writes, under a lock; any number reads. Simulated data has a catalogue of its own.
"""

from __future__ import annotations

import fcntl
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from qts.domain import Market, OperationError, RefusedError, Timeframe, check_name
from qts.feed import SEOUL, FileLayout, TradingCalendar, find_files, read_market_file
from qts.history.catalogue_file import (
    DRAFT,
    TICKS,
    CatalogueFile,
    Range,
    Rows,
    Series,
    file_problems,
    make_rows,
    merge,
    no_rows,
    open_file,
    period_range,
    periods,
    read_file,
    read_metadata,
    store_file,
    subtract,
    to_table,
    utc_minute,
)
from qts.venues import market_of_venue

KINDS = (*(each.value for each in Timeframe), TICKS)
_SYMBOL = re.compile(r"[0-9A-Za-z]+(-[0-9A-Za-z]+)?", re.ASCII)
_OPEN_FILES = 32


class SeriesInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `qts data list`."""

    venue: str
    symbol: str
    timeframe: str
    start: datetime | None = msgspec.field(name="from")
    end: datetime | None = msgspec.field(name="to")
    bars: int
    gaps: int
    size_bytes: int
    simulated: bool


class BarCatalogue:
    """Past bars and ticks of all markets, under `home`."""

    def __init__(self, home: Path, *, simulated: bool = False) -> None:
        self.simulated = simulated
        self.root = home / ("catalogue-simulated" if simulated else "catalogue")
        self._written: OrderedDict[Path, CatalogueFile] = OrderedDict()

    # Reading

    def bars(
        self,
        market: Market | str,
        symbol: str,
        timeframe: Timeframe | str,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Rows:
        """Return the bars that close after `start`, up to `end`, as an array with named columns.

        `at` is the close in epoch seconds; see `BAR_FIELDS`.
        """
        series = _series(market, symbol, timeframe)
        return self.rows(series, _seconds(start, -np.inf), _seconds(end, np.inf))

    def frame(
        self,
        market: Market | str,
        symbol: str,
        timeframe: Timeframe | str,
        start: datetime | None = None,
        end: datetime | None = None,
        *,
        library: Literal["polars", "pandas"] = "polars",
    ) -> Any:
        """Return the bars as a frame of polars or pandas, `at` as a time in UTC."""
        table = to_table(self.bars(market, symbol, timeframe, start, end))
        if library == "pandas":
            return table.to_pandas()
        check_name("library", library, ["polars", "pandas"])
        return _import(library).from_arrow(table)

    def rows(self, series: Series, start: float = -np.inf, end: float = np.inf) -> Rows:
        """Return the rows of (start, end] in order of time."""
        parts = [no_rows(series.kind)]
        for path in self.files(series):
            first, last = period_range(path, series.kind)
            if first < end and last > start:
                parts.append(read_file(path, series).rows)
        rows = np.concatenate(parts)
        low, high = np.searchsorted(rows["at"], (start, end), side="right")
        return rows[low:high]

    def covered(self, series: Series) -> list[Range]:
        """Return the ranges that were read, whether or not something traded in them."""
        return merge(each for path in self.files(series) for each in read_metadata(path).covered)

    def files(self, series: Series) -> list[Path]:
        return sorted(self._folder(series).glob("*.parquet"))

    def series(self) -> list[Series]:
        """Return what the catalogue holds, in order of market, kind and symbol."""
        found = []
        for market in self._markets():
            for kind in KINDS:
                folder = self.root / market.lower() / kind
                symbols = sorted(each.name for each in folder.glob("*") if each.is_dir())
                found += [Series(market, kind, symbol) for symbol in symbols]
        return found

    def info(self, series: Series) -> SeriesInfo:
        """Return the extent of a series; reads the footers of its files only."""
        files = self.files(series)
        covered = self.covered(series)
        start, end = (covered[0][0], covered[-1][1]) if covered else (None, None)
        return SeriesInfo(
            venue=series.market.lower(),
            symbol=series.symbol,
            timeframe=series.kind,
            start=start if start is None else datetime.fromtimestamp(start, UTC),
            end=end if end is None else datetime.fromtimestamp(end, UTC),
            bars=sum(open_file(path).metadata.num_rows for path in files),
            gaps=max(0, len(covered) - 1),
            size_bytes=sum(path.stat().st_size for path in files),
            simulated=self.simulated,
        )

    # Writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the catalogue for one writer; refused while another process writes."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.root / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(
                    f"another download or import writes to {self.root}; wait until it ends"
                ) from None
            for draft in self.root.rglob(f"*{DRAFT}"):
                draft.unlink()  # of a writer that was killed
            self._written.clear()
            yield

    def write(self, series: Series, span: Range, rows: Rows) -> None:
        """Replace the rows of `span` and mark it as covered; the caller is in `writing`.

        Raises OperationError when the disk refuses; files that were replaced before stay.
        """
        folder = self._folder(series)
        for path, start, end in periods(folder, series.kind, span):
            part = rows[(rows["at"] > start) & (rows["at"] <= end)]
            old = self._written.get(path)
            if old is None:
                empty = CatalogueFile(no_rows(series.kind), [])
                old = read_file(path, series) if path.exists() else empty
            at = old.rows["at"]
            kept = (old.rows[at <= start], part, old.rows[at > end])
            new = CatalogueFile(np.concatenate(kept), merge([*old.covered, (start, end)]))
            store_file(path, series, new)
            self._written[path] = new
            if len(self._written) > _OPEN_FILES:
                self._written.popitem(last=False)

    def clear(self, series: Series) -> None:
        """Delete a series; the caller is in `writing`."""
        for path in self.files(series):
            path.unlink()
            self._written.pop(path, None)

    def _markets(self) -> list[Market | str]:
        """Return our markets, and the venues of others that the catalogue has bars of."""
        ours = {each.lower(): each for each in Market}
        names = sorted(each.name for each in self.root.glob("*") if each.is_dir())
        return [*Market, *(each for each in names if each not in ours)]

    def _folder(self, series: Series) -> Path:
        return self.root / series.market.lower() / series.kind / series.symbol


def check_symbol(symbol: str) -> str:
    """Return the symbol; refuse one that cannot name a folder."""
    if not _SYMBOL.fullmatch(symbol) or len(symbol) > 20:
        raise RefusedError(f"{symbol[:40]!r} is not a symbol, as in 005930 or KRW-BTC")
    return symbol


def _series(market: Market | str, symbol: str, timeframe: Timeframe | str) -> Series:
    check_name("timeframe", str(timeframe), [each.value for each in Timeframe])
    return Series(market_of_venue(str(market)), str(timeframe), check_symbol(symbol))


def _seconds(moment: datetime | None, default: float) -> float:
    if moment is not None and moment.tzinfo is None:
        raise RefusedError(f"{moment} has no time zone; pass one, as in {moment}+09:00")
    return default if moment is None else moment.timestamp()


def _import(library: str) -> Any:
    import importlib

    try:
        return importlib.import_module(library)
    except ImportError:
        raise RefusedError(f"{library} is not installed; pip install {library}") from None


_TICK_S = 1e-6  # the first tick is inside of the range it begins


class ImportedSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one symbol in the imported files."""

    symbol: str
    timeframe: str
    rows: int
    start: datetime = msgspec.field(name="from")
    end: datetime = msgspec.field(name="to")


def import_files(
    paths: Sequence[Path],
    market: Market | str,
    layout: FileLayout,
    catalogue: BarCatalogue,
    *,
    dry_run: bool = False,
) -> list[ImportedSeries]:
    """Store the rows of all files; a series is replaced from its first to its last row.

    Everything is read and checked before anything is stored. Raises RefusedError with file and
    line for a row that is wrong, and for two rows of one bar that differ.
    """
    kind = layout.timeframe.value if layout.timeframe else TICKS
    rules = market if isinstance(market, Market) else Market.OTHER
    found = _read(paths, msgspec.structs.replace(layout, market=rules), kind)
    imported = []
    for symbol, rows in sorted(found.items()):
        series = Series(market, kind, check_symbol(symbol))
        first, last = float(rows["at"][0]), float(rows["at"][-1])
        if not dry_run:
            length = layout.timeframe.seconds if layout.timeframe else _TICK_S
            catalogue.write(series, (first - length, last), rows)
        imported.append(
            ImportedSeries(
                symbol=symbol,
                timeframe=kind,
                rows=len(rows),
                start=datetime.fromtimestamp(first, UTC),
                end=datetime.fromtimestamp(last, UTC),
            )
        )
    return imported


def _read(paths: Sequence[Path], layout: FileLayout, kind: str) -> dict[str, Rows]:
    parts: dict[str, list[Rows]] = defaultdict(list)
    for path in (file for each in paths for file in find_files(each)):
        for found in read_market_file(path, layout):
            if found.is_bars != (kind != TICKS):
                what = "bars" if found.is_bars else "ticks"
                raise RefusedError(f"{path} holds {what}; --timeframe is {kind}")
            rows = make_rows(kind, found.columns)
            for symbol in dict.fromkeys(found.symbols):
                parts[symbol].append(rows[found.symbols == symbol])
    return {symbol: _sorted(symbol, kind, each) for symbol, each in parts.items()}


def _sorted(symbol: str, kind: str, parts: list[Rows]) -> Rows:
    rows = np.concatenate(parts)
    rows = rows[np.argsort(rows["at"], kind="stable")]
    if kind == TICKS:
        return rows
    again = np.flatnonzero(np.diff(rows["at"]) == 0)
    for index in again:
        if rows[index] != rows[index + 1]:
            at = datetime.fromtimestamp(float(rows["at"][index]), UTC)
            raise RefusedError(
                f"{symbol} has two different bars that close at {at:%Y-%m-%d %H:%M:%S} UTC"
            )
    return np.delete(rows, again)


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
                problems = list(file_problems(path, series, content))
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


def _gaps(
    series: Series, covered: list[Range], traded: set[date], calendar: TradingCalendar
) -> Iterator[str]:
    for (_, low), (high, _) in pairwise(covered):
        yield f"not downloaded: {utc_minute([low])} to {utc_minute([high])}"
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
