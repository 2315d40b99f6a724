"""One file of the catalogue: rows, and in its metadata the ranges of time that they cover.

Ranges are sorted and disjoint; a range (start, end] excludes its start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import Bar, Market, OperationError, Timeframe
from qts.feed import pyarrow_module

TICKS = "ticks"
BAR_FIELDS = ("at", "open", "high", "low", "close", "volume", "value")
TICK_FIELDS = ("at", "price", "volume", "bid", "ask")
DRAFT = ".draft"
Rows = npt.NDArray[np.void]


Range = tuple[float, float]


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of the ranges.

    >>> merge([(5, 7), (1, 3), (3, 4)])
    [(1, 4), (5, 7)]
    """
    merged: list[Range] = []
    for start, end in sorted(each for each in ranges if each[0] < each[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(ranges: Iterable[Range], start: float, end: float) -> list[Range]:
    """Return what lies in (start, end]."""
    return merge((max(low, start), min(high, end)) for low, high in ranges)


def subtract(wanted: Range, covered: Iterable[Range]) -> list[Range]:
    """Return what `covered` lacks of a range.

    >>> subtract((0, 10), [(2, 3), (5, 20)])
    [(0, 2), (3, 5)]
    """
    start, end = wanted
    missing: list[Range] = []
    for low, high in clip(covered, start, end):
        missing.append((start, low))
        start = high
    return merge([*missing, (start, end)])


class Series(NamedTuple):
    """Name of one series: bars of a timeframe, or ticks."""

    market: Market | str  # the name of a venue that a package adds
    kind: str
    symbol: str


class FileMetadata(msgspec.Struct, frozen=True):
    """What a file says about itself; `covered` are its ranges in epoch seconds."""

    market: str
    symbol: str
    kind: str
    covered: list[Range]


class CatalogueFile(NamedTuple):
    rows: Rows
    covered: list[Range]


def bar_rows(bars: Iterable[Bar]) -> Rows:
    """Return bars as rows of the catalogue."""
    values = [(b.at, b.open, b.high, b.low, b.close, b.volume, b.value) for b in bars]
    return np.array(values, _dtype(BAR_FIELDS))


def make_rows(kind: str, columns: dict[str, npt.NDArray[np.float64]]) -> Rows:
    """Return columns as rows of the catalogue; a column that is missing is 0."""
    rows = np.zeros(len(columns["at"]), no_rows(kind).dtype)
    for name in rows.dtype.names or ():
        if name in columns:
            rows[name] = columns[name]
    return rows


def no_rows(kind: str) -> Rows:
    return np.zeros(0, _dtype(TICK_FIELDS if kind == TICKS else BAR_FIELDS))


def _dtype(fields: tuple[str, ...]) -> np.dtype[np.void]:
    return np.dtype([(name, np.float64) for name in fields])


def read_file(path: Path, series: Series) -> CatalogueFile:
    """Read one file; raises OperationError naming it when it is damaged or of another series."""
    metadata = read_metadata(path)
    fields = TICK_FIELDS if series.kind == TICKS else BAR_FIELDS
    if (metadata.market, metadata.kind, metadata.symbol) != tuple(map(str, series)):
        raise OperationError(
            f"{path} holds {metadata.symbol}, {metadata.kind} of {metadata.market}; expected "
            f"{series.symbol}, {series.kind} of {series.market}"
        )
    try:
        table = open_file(path).read(columns=list(fields))
        rows = np.zeros(table.num_rows, _dtype(fields))
        rows["at"] = table["at"].cast("int64").to_numpy() / 1e6
        for name in fields[1:]:
            rows[name] = table[name].to_numpy()
    except _read_errors() as error:
        raise _damaged(path, error) from None
    return CatalogueFile(rows, merge(metadata.covered))


def period_range(path: Path, kind: str) -> Range:
    """Return the time that a file of this name may hold."""
    try:
        parts = [int(part) for part in path.stem.split("-")]
        first = date(*[*parts, 1, 1][:3])
    except (ValueError, TypeError):
        raise OperationError(f"{path} is not a file of the catalogue; move it away") from None
    return _midnight(first), _midnight(_next_period(first, kind))


def _next_period(first: date, kind: str) -> date:
    if kind in (TICKS, Timeframe.S1):
        return first + timedelta(days=1)
    if kind == Timeframe.D1:
        return date(first.year + 1, 1, 1)
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)


def periods(folder: Path, kind: str, span: Range) -> Iterator[tuple[Path, float, float]]:
    """Split a span by the files that hold it."""
    start, end = span
    form = {Timeframe.D1: "%Y", Timeframe.S1: "%Y-%m-%d", TICKS: "%Y-%m-%d"}.get(kind, "%Y-%m")
    while start < end:
        day = datetime.fromtimestamp(start, UTC).date()
        path = folder / f"{day.strftime(form)}.parquet"
        last = min(end, period_range(path, kind)[1])
        yield path, start, last
        start = last


def store_file(path: Path, series: Series, content: CatalogueFile) -> None:
    table = to_table(content.rows)
    covered = clip(content.covered, *period_range(path, series.kind))
    metadata = FileMetadata(series.market, series.symbol, series.kind, covered)
    table = table.replace_schema_metadata({b"qts": msgspec.json.encode(metadata)})
    draft = path.with_suffix(DRAFT)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft.open("wb") as file:
            pyarrow_module("pyarrow.parquet").write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OperationError(f"{path} cannot be written: {error.strerror or error}") from None


def to_table(rows: Rows) -> Any:
    pa = pyarrow_module("pyarrow")
    times = np.round(rows["at"] * 1e6).astype(np.int64)
    columns = {"at": pa.array(times).cast(pa.timestamp("us", tz="UTC"))}
    for name in (rows.dtype.names or ())[1:]:
        columns[name] = pa.array(np.ascontiguousarray(rows[name]))
    return pa.table(columns)


def read_metadata(path: Path) -> FileMetadata:
    try:
        found = open_file(path).metadata.metadata[b"qts"]
        return msgspec.json.decode(found, type=FileMetadata)
    except (KeyError, TypeError, msgspec.DecodeError):
        raise OperationError(f"{path} is not a file of the catalogue; move it away") from None


def open_file(path: Path) -> Any:
    parquet = pyarrow_module("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path)
    except _read_errors() as error:
        raise _damaged(path, error) from None


def _read_errors() -> tuple[type[Exception], ...]:
    return OSError, ValueError, KeyError, pyarrow_module("pyarrow").ArrowException


def _damaged(path: Path, error: Exception) -> OperationError:
    reason = " ".join(str(error).split())[:120]
    return OperationError(f"{path} cannot be read: {reason}; delete it and download it again")


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def file_problems(path: Path, series: Series, content: CatalogueFile) -> Iterator[str]:
    """Yield what is wrong with the rows of a file."""
    rows = content.rows
    if not len(rows):
        return
    at, (start, end) = rows["at"], period_range(path, series.kind)
    steps = np.diff(at)
    if (steps < 0).any():
        yield f"rows are not in order of time, first after {utc_minute(at[:-1][steps < 0])}"
    if series.kind != TICKS:
        if (steps == 0).any():
            yield f"{int((steps == 0).sum())} bars twice, first at {utc_minute(at[1:][steps == 0])}"
        yield from _bar_problems(rows)
    elif (bad := ~(np.isfinite(rows["price"]) & (rows["price"] > 0))).any():
        yield f"{int(bad.sum())} ticks without a price, first at {utc_minute(at[bad])}"
    outside = (at <= start) | (at > end)
    if outside.any():
        yield f"{int(outside.sum())} rows of another period, first at {utc_minute(at[outside])}"
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
            yield f"{int(bad.sum())} bars with {what}, first at {utc_minute(rows['at'][bad])}"


def utc_minute(at: Any) -> str:
    """Format the first of some times."""
    return datetime.fromtimestamp(float(at[0]), UTC).strftime("%Y-%m-%d %H:%M UTC")
