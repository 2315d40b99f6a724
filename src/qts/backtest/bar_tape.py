"""Tape of OHLCV bars: each is played at its open, inside, and at its close.

    time    09:00         09:01               09:02
            open of 1     close of 1,         close of 2, ...
                          then open of 2

Where a close and an open have the same time, closes come first: what is decided on the close of a
bar trades at the open of the next one. Bars of all symbols are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError, Timeframe, check_name
from qts.feed import FileRows
from qts.router import bar_session

EVENTS = 100_000  # opens and closes of a part
FIELDS = ("at", "open", "high", "low", "close", "volume", "value")

Rows = npt.NDArray[np.void]
_DTYPE = np.dtype([("symbol", np.int32), *((name, np.float64) for name in FIELDS)])


class BarEvents(NamedTuple):
    """Opens and closes of bars in order of time, as columns."""

    row: npt.NDArray[np.int64]  # index into the rows of the tape
    is_open: npt.NDArray[np.bool_]
    at: npt.NDArray[np.float64]


class BarTape:
    """Bars of one timeframe, of any number of symbols; iterable any number of times.

    `before` are bars that are not played: strategies take the bars of their warm-up from them.
    """

    def __init__(
        self, timeframe: Timeframe, symbols: Sequence[str], rows: Rows, before: Rows | None = None
    ) -> None:
        self.timeframe = timeframe
        self.symbols = list(symbols)
        self.rows = np.sort(rows, order=("at", "symbol"), kind="stable")
        self.before = self.rows[:0] if before is None else before
        self.events = len(rows)
        self.wanted: tuple[str, ...] = ()  # symbols that were asked for
        self.starts = self._starts()
        self.is_traded = self._is_traded()

    @classmethod
    def of_rows(cls, parts: Iterable[FileRows], symbols: Sequence[str] = ()) -> BarTape:
        """Return the bars of files; refuse two timeframes, and two bars of one time.

        `symbols` are in the tape also where they have no bar.
        """
        found = list(parts)
        timeframes = {part.timeframe for part in found if part.timeframe is not None}
        if len(timeframes) != 1:
            listed = ", ".join(sorted(timeframes)) or "none"
            raise RefusedError(f"the data has bars of {listed}; expected one timeframe")
        names = sorted({*symbols, *(str(name) for part in found for name in part.symbols)})
        numbers = {name: number for number, name in enumerate(names)}
        tables = []
        for part in found:
            rows = np.zeros(len(part.symbols), _DTYPE)
            rows["symbol"] = [numbers[str(name)] for name in part.symbols]
            for name in FIELDS:
                rows[name] = part.columns[name]
            tables.append(rows)
        tape = cls(timeframes.pop(), names, np.concatenate(tables))
        tape.wanted = tuple(symbols)
        return tape

    @property
    def digest(self) -> str:
        """Hash of the timeframe, the symbols and every bar, also those before."""
        head = "\x1f".join((self.timeframe, *self.symbols)).encode()
        bars = self.rows.tobytes() + self.before.tobytes()
        return hashlib.sha256(head + bars).hexdigest()[:16]

    def select(
        self, symbols: Sequence[str] | None, start: float = -np.inf, end: float = np.inf
    ) -> BarTape:
        """Return the bars of these symbols that close after `start`, up to `end`.

        Those up to `start` are in `before`.
        """
        names = list(dict.fromkeys(symbols)) if symbols else self.symbols
        for name in names:
            check_name("symbol of the data", name, self.symbols)
        numbers = np.array([self.symbols.index(name) for name in names], np.int32)
        rows = np.concatenate([self.before, self.rows])
        kept = rows[np.isin(rows["symbol"], numbers) & (rows["at"] <= end)]
        renumbered = np.zeros(len(self.symbols), np.int32)
        renumbered[numbers] = np.arange(len(names))
        kept["symbol"] = renumbered[kept["symbol"]]
        start = max(start, self.before["at"].max(initial=-np.inf))
        first = np.searchsorted(kept["at"], start, side="right")
        selected = BarTape(self.timeframe, names, kept[first:], kept[:first])
        selected.wanted = tuple(symbols or self.wanted)
        return selected

    def last_before(self, count: int) -> Rows:
        """Return the last bars of each symbol in `before`, in order of time."""
        symbol = self.before["symbol"]
        chosen = [np.flatnonzero(symbol == n)[-count:] for n in range(len(self.symbols))]
        return self.before[np.sort(np.concatenate(chosen))] if count else self.before[:0]

    def __iter__(self) -> Iterator[BarEvents]:
        count = len(self.rows)
        row = np.concatenate([np.arange(count), np.arange(count)])
        is_open = np.repeat([False, True], count)
        at = np.concatenate([self.rows["at"], self.starts])
        order = np.lexsort((row, is_open, at))
        first = 0
        while first < count * 2:
            end = min(first + EVENTS, count * 2)
            while end < count * 2 and at[order[end]] == at[order[end - 1]]:
                end += 1  # what has one time is played together
            part = order[first:end]
            yield BarEvents(row[part], is_open[part], at[part])
            first = end

    def _is_traded(self) -> npt.NDArray[np.bool_]:
        """Return which bars have traded; data without any volume counts as traded."""
        volume, symbol = self.rows["volume"], self.rows["symbol"]
        total = np.bincount(symbol, volume, minlength=len(self.symbols))
        return np.asarray((volume > 0) | (total[symbol] == 0))

    def _starts(self) -> npt.NDArray[np.float64]:
        """Return when each bar opens, never before the close of the bar before."""
        seconds = np.full(len(self.symbols), float(self.timeframe.seconds))
        if self.timeframe is Timeframe.D1:
            seconds[:] = [bar_session(symbol).length_s for symbol in self.symbols]
        at, symbol = self.rows["at"], self.rows["symbol"]
        starts = np.asarray(at - seconds[symbol])
        order = np.lexsort((at, symbol))
        same = symbol[order][1:] == symbol[order][:-1]
        again = same & (np.diff(at[order]) == 0)
        if again.any():
            double = self.rows[order[:-1][again][0]]
            raise RefusedError(
                f"{self.symbols[double['symbol']]} has two bars that close at {double['at']:.0f}"
                " (seconds since 1970); expected one"
            )
        before = at[order][:-1][same]
        later = order[1:][same]
        starts[later] = np.maximum(starts[later], before)
        return starts
