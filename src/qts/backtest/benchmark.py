"""Buy and hold: every symbol bought at its first price in equal parts, without costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qts.backtest.bar_tape import BarTape
from qts.backtest.performance import EquityPoint
from qts.backtest.row_table import values_before, windows
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
    count = max(1, len(tape.seen))
    opens, growths = np.full(len(tape.symbols), np.nan), np.ones(len(tape.symbols))
    times, values, total = [np.array([tape.starts.min()])], [np.array([start])], 0.0
    for part in windows(tape.rows):
        symbol, at = part["symbol"], part["at"]
        first = np.full(len(opens), np.nan)
        first[symbol[::-1]] = part["open"][::-1]  # of several values of one index the last is kept
        opens = np.where(np.isnan(opens), first, opens)
        growth = part["close"] / opens[symbol]
        change = growth - values_before(symbol, growth, growths)
        sums = np.cumsum(np.concatenate([[total], change]))[1:]
        total = float(sums[-1])
        is_last = np.concatenate([at[1:] != at[:-1], [True]])
        if times[-1][-1] == at[0]:  # its last bars are in this window
            times[-1], values[-1] = times[-1][:-1], values[-1][:-1]
        times.append(at[is_last])
        values.append(start * (1 + sums[is_last] / count))
    found = zip(np.concatenate(times).tolist(), np.concatenate(values).tolist(), strict=True)
    return tuple(EquityPoint(at, value, value) for at, value in found)
