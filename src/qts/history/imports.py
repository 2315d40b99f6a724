"""Import of files into the catalogue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from qts.domain import Market, RefusedError
from qts.feed import FileLayout, find_files, read_market_file
from qts.history.catalogue import BarCatalogue, check_symbol
from qts.history.catalogue_file import TICKS, Rows, Series, make_rows

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
