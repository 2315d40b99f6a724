"""Tape of OHLCV bars: each is played at its open, inside, and at its close.

    time    09:00         09:01               09:02
            open of 1     close of 1,         close of 2, ...
                          then open of 2

Where a close and an open have the same time, closes come first: what is decided on the close of a
bar trades at the open of the next one. Bars of all symbols are in memory, in one table; what is
computed from them is computed a window of rows at a time.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.backtest.row_table import WINDOW, RowTable, is_sorted, sort_rows, values_before, windows
from qts.backtest.row_table import Rows as Rows
from qts.domain import RefusedError, Timeframe, check_name
from qts.feed import FileRows
from qts.router import bar_session

EVENTS = 100_000  # opens and closes of a part
FIELDS = ("at", "open", "high", "low", "close", "volume", "value")
_ORDER = ("at", "symbol")
_ROUNDING_S = 1.0  # more than a sum of times is off

Floats = npt.NDArray[np.float64]


class BarEvents(NamedTuple):
    """Opens and closes of bars in order of time, as columns."""

    row: npt.NDArray[np.int64]  # index into the rows of the tape
    is_open: npt.NDArray[np.bool_]
    at: npt.NDArray[np.float64]

    def part(self, first: int, end: int) -> BarEvents:
        return BarEvents(self.row[first:end], self.is_open[first:end], self.at[first:end])

    def followed_by(self, later: BarEvents) -> BarEvents:
        return BarEvents(
            np.concatenate([self.row, later.row]),
            np.concatenate([self.is_open, later.is_open]),
            np.concatenate([self.at, later.at]),
        )


class BarTape:
    """Bars of one timeframe, of any number of symbols; iterable any number of times.

    `before` are bars that are not played: strategies take the bars of their warm-up from them.
    """

    def __init__(
        self, timeframe: Timeframe, symbols: Sequence[str], rows: Rows, before: Rows | None = None
    ) -> None:
        self.timeframe = timeframe
        self.symbols = list(symbols)
        if not is_sorted(rows, _ORDER):
            rows = rows.copy()
            sort_rows(rows, _ORDER)
        self.rows = rows
        self.before = self.rows[:0] if before is None else before
        self.events = len(rows)
        self.wanted: tuple[str, ...] = ()  # symbols that were asked for
        self.starts = BarStarts(rows, self._seconds, self.symbols)
        self.is_traded = self._is_traded()

    @classmethod
    def of_rows(cls, parts: Iterable[FileRows], symbols: Sequence[str] = ()) -> BarTape:
        """Return the bars of files; refuse two timeframes, and two bars of one time.

        `symbols` are in the tape also where they have no bar.
        """
        table, timeframes = RowTable(FIELDS), set[Timeframe]()
        for part in parts:
            if part.timeframe is not None:
                timeframes.add(part.timeframe)
            table.add(part)
        if len(timeframes) != 1:
            listed = ", ".join(sorted(timeframes)) or "none"
            raise RefusedError(f"the data has bars of {listed}; expected one timeframe")
        names, rows = table.finish(symbols)
        sort_rows(rows, _ORDER)
        tape = cls(timeframes.pop(), names, rows)
        tape.wanted = tuple(symbols)
        return tape

    @property
    def digest(self) -> str:
        """Hash of the timeframe, the symbols and every bar, also those before."""
        head = "\x1f".join((self.timeframe, *self.symbols)).encode()
        content = hashlib.sha256(head)
        for rows in (self.rows, self.before):
            content.update(np.ascontiguousarray(rows).view(np.uint8).data)
        return content.hexdigest()[:16]

    @property
    def seen(self) -> set[int]:
        """Numbers of the symbols with a bar."""
        found = np.zeros(len(self.symbols), np.bool_)
        for part in windows(self.rows):
            found[part["symbol"]] = True
        return set(np.flatnonzero(found).tolist())

    def select(
        self, symbols: Sequence[str] | None, start: float = -np.inf, end: float = np.inf
    ) -> BarTape:
        """Return the bars of these symbols that close after `start`, up to `end`.

        Those up to `start` are in `before`.
        """
        names = list(dict.fromkeys(symbols)) if symbols else self.symbols
        for name in names:
            check_name("symbol of the data", name, self.symbols)
        rows = np.concatenate([self.before, self.rows]) if len(self.before) else self.rows
        kept = rows[: bisect_right(rows["at"], end)]
        if names != self.symbols:
            kept = self._rows_of(names, kept)
        start = max(start, self.before["at"].max(initial=-np.inf))
        first = bisect_right(kept["at"], start)
        if names != self.symbols:
            sort_rows(kept[first:], _ORDER)
        selected = BarTape(self.timeframe, names, kept[first:], kept[:first])
        selected.wanted = tuple(symbols or self.wanted)
        return selected

    def _rows_of(self, names: Sequence[str], rows: Rows) -> Rows:
        """Return a copy of the rows of these symbols, numbered in their order."""
        numbers = np.array([self.symbols.index(name) for name in names], np.int32)
        renumbered = np.full(len(self.symbols), -1, np.int32)
        renumbered[numbers] = np.arange(len(names))
        kept: Rows = rows[renumbered[rows["symbol"]] >= 0]
        kept["symbol"] = renumbered[kept["symbol"]]
        return kept

    def last_before(self, count: int) -> Rows:
        """Return the last bars of each symbol in `before`, in order of time."""
        symbol = self.before["symbol"]
        chosen = [np.flatnonzero(symbol == n)[-count:] for n in range(len(self.symbols))]
        return self.before[np.sort(np.concatenate(chosen))] if count else self.before[:0]

    def __iter__(self) -> Iterator[BarEvents]:
        waiting = _NO_EVENTS
        for events in self._windows():
            waiting = waiting.followed_by(events)
            while len(waiting.at) >= EVENTS:
                # What has one time is played together; two windows have no time in common.
                end = int(np.searchsorted(waiting.at, waiting.at[EVENTS - 1], side="right"))
                yield waiting.part(0, end)
                waiting = waiting.part(end, len(waiting.at))
        if len(waiting.at):
            yield waiting

    def _windows(self) -> Iterator[BarEvents]:
        """Yield the events of one stretch of time after the other."""
        closes, first, since = self.rows["at"], 0, -math.inf
        longest = float(self._seconds.max(initial=0.0))
        while first < len(closes):
            until = float(closes[min(first + EVENTS // 2, len(closes)) - 1])
            end = bisect_right(closes, until)
            # A bar opens before it closes, and never earlier than its length before.
            last = bisect_right(closes, until + longest + _ROUNDING_S)
            starts = self.starts[first:last]
            opens = first + np.flatnonzero((starts > since) & (starts <= until))
            row = np.concatenate([np.arange(first, end), opens])
            is_open = np.repeat([False, True], [end - first, len(opens)])
            at = np.concatenate([closes[first:end], self.starts[opens]])
            order = np.lexsort((row, is_open, at))
            yield BarEvents(row[order], is_open[order], at[order])
            first, since = end, until

    @property
    def _seconds(self) -> npt.NDArray[np.float64]:
        """Length of the bars of each symbol."""
        if self.timeframe is Timeframe.D1:
            return np.array([bar_session(symbol).length_s for symbol in self.symbols], np.float64)
        return np.full(len(self.symbols), float(self.timeframe.seconds))

    def _is_traded(self) -> npt.NDArray[np.bool_]:
        """Return which bars have traded; data without any volume counts as traded."""
        total = np.zeros(len(self.symbols))
        for part in windows(self.rows):
            total += np.bincount(part["symbol"], part["volume"], minlength=len(total))
        found = [(part["volume"] > 0) | (total[part["symbol"]] == 0) for part in windows(self.rows)]
        return np.concatenate(found) if found else np.zeros(0, np.bool_)


_NO_EVENTS = BarEvents(np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0))


class BarStarts:
    """Opens of bars in order of time, indexed as an array.

    They are computed from the closes, so that they take no memory. A bar opens its length before
    its close, but never before the close of the bar before: only the opens of such late bars are
    kept.
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
