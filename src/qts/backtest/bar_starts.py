"""When bars open: computed from their closes, so that they take no memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qts.backtest.row_table import WINDOW, Rows, values_before, windows
from qts.domain import RefusedError

Floats = npt.NDArray[np.float64]


class BarStarts:
    """Opens of bars in order of time, indexed as an array.

    A bar opens its length before its close, but never before the close of the bar before: only
    the opens of such late bars are kept.
    """

    def __init__(self, rows: Rows, seconds: Floats, symbols: Sequence[str]) -> None:
        """Take the length of the bars of each symbol; refuse two bars of one time."""
        self._closes, self._symbols, self._seconds = rows["at"], rows["symbol"], seconds
        late, closes = [np.zeros(0, np.int64)], [np.zeros(0)]
        latest, first = np.full(len(seconds), -math.inf), 0  # closes by symbol
        double: list[tuple[int, float]] = []
        for part in windows(rows):
            at, symbol = np.ascontiguousarray(part["at"]), np.ascontiguousarray(part["symbol"])
            before = values_before(symbol, at, latest)
            is_late = before > at - seconds[symbol]
            late.append(first + np.flatnonzero(is_late))
            closes.append(before[is_late])
            again = before == at
            double += zip(symbol[again].tolist(), at[again].tolist(), strict=True)
            first += len(part)
        if double:
            number, close = min(double)
            raise RefusedError(
                f"{symbols[number]} has two bars that close at {close:.0f}"
                " (seconds since 1970); expected one"
            )
        self._late, self._late_starts = np.concatenate(late), np.concatenate(closes)

    def __len__(self) -> int:
        return len(self._closes)

    def __getitem__(self, index: Any) -> Any:
        """Return the open of a row, or of a slice or an array of rows."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        starts = self._closes[index] - self._seconds[self._symbols[index]]
        if not len(self._late):
            return starts
        place = np.minimum(np.searchsorted(self._late, index), len(self._late) - 1)
        return np.where(self._late[place] == index, self._late_starts[place], starts)

    def __iter__(self) -> Iterator[float]:
        return iter(self.tolist())

    def min(self) -> float:
        firsts = range(0, len(self), WINDOW)
        return min(float(self[first : first + WINDOW].min()) for first in firsts)

    def tolist(self) -> list[float]:
        found: list[float] = self[:].tolist()
        return found
