"""Buy and hold: every symbol bought at its first price in equal parts, without costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qts.backtest.bar_tape import BarTape
from qts.backtest.performance import EquityPoint
from qts.backtest.tape import Chunk

Floats = npt.NDArray[np.float64]


class BuyAndHold:
    """Growth of the symbols of a tape of ticks, with a point for each chunk."""

    def __init__(self) -> None:
        self._first: Floats = np.zeros(0)
        self._last: Floats = np.zeros(0)
        self._points: list[tuple[float, float, int]] = []  # time, sum of growths, symbols so far

    def add(self, chunk: Chunk, symbols: int) -> None:
        """Add the prices of a chunk; `symbols` is the number of symbols so far."""
        more = np.zeros(symbols - len(self._first))
        self._first = np.concatenate([self._first, more])
        self._last = np.concatenate([self._last, more])
        valid = (chunk.price > 0) & np.isfinite(chunk.price)
        symbol, price = chunk.symbol, chunk.price
        if not valid.all():
            symbol, price = symbol[valid], price[valid]
        if not self._first.all():
            first = np.zeros(symbols)
            first[symbol[::-1]] = price[::-1]  # of several values of one index the last is kept
            if not self._points:
                self._points.append((float(chunk.at[0]), 0.0, 0))
            self._first = np.where(self._first > 0, self._first, first)
        self._last[symbol] = price
        seen = self._first > 0
        growth = float((self._last[seen] / self._first[seen]).sum())
        self._points.append((float(chunk.at[-1]), growth, int(seen.sum())))

    @property
    def seen(self) -> set[int]:
        """Numbers of the symbols with a price."""
        return set(np.flatnonzero(self._first > 0).tolist())

    def points(self, start: float) -> tuple[EquityPoint, ...]:
        """Return the equity of an account that starts with this; cash until a first price."""
        symbols = max(1, int((self._first > 0).sum()))
        values = [
            (at, start * (growth + symbols - seen) / symbols) for at, growth, seen in self._points
        ]
        return tuple(EquityPoint(at, value, value) for at, value in values)


def hold_bars(tape: BarTape, start: float) -> tuple[EquityPoint, ...]:
    """Return the equity of holding all symbols from their first open, at each close."""
    rows, count = tape.rows, max(1, len(set(tape.rows["symbol"].tolist())))
    order = np.lexsort((rows["at"], rows["symbol"]))
    symbol, close = rows["symbol"][order], rows["close"][order]
    is_first = np.concatenate([[True], symbol[1:] != symbol[:-1]])
    opens = rows["open"][order][is_first][np.cumsum(is_first) - 1]
    growth = close / opens
    before = np.where(is_first, 1.0, np.concatenate([[1.0], growth[:-1]]))
    change = np.empty(len(rows))
    change[order] = growth - before
    total = start * (1 + np.cumsum(change) / count)
    is_last = np.concatenate([rows["at"][1:] != rows["at"][:-1], [True]])
    found = [(float(tape.starts.min()), start)]
    found += zip(rows["at"][is_last].tolist(), total[is_last].tolist(), strict=True)
    return tuple(EquityPoint(at, value, value) for at, value in found)
