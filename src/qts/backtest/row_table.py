"""Table of bars or ticks that is filled part by part, and sorted in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from qts.feed import FileRows

WINDOW = 1 << 16  # rows that are computed at once

Rows = npt.NDArray[np.void]


class RowTable:
    """Rows of 64-bit columns with the numbers of their symbols; a part is not kept."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = tuple(fields)
        self._rows = np.zeros(
            0, [("symbol", np.int32), *((name, np.float64) for name in self._fields)]
        )
        self._count = 0
        self._numbers: dict[str, int] = {}  # in the order in which they are found

    def add(self, part: FileRows) -> None:
        first, last = self._count, self._count + len(part.symbols)
        if last > len(self._rows):
            # Large blocks of memory grow without a copy where the system can move their pages.
            self._rows.resize(last + last // 16 + WINDOW, refcheck=False)
        rows = self._rows[first:last]
        rows["symbol"] = self._numbers_of(part.symbols)
        for name in self._fields:
            rows[name] = part.columns[name]
        self._count = last

    def finish(self, symbols: Sequence[str] = ()) -> tuple[list[str], Rows]:
        """Return the symbols of the rows and these ones, sorted, and the rows; it is empty then."""
        rows, self._rows = self._rows, self._rows[:0].copy()
        rows.resize(self._count, refcheck=False)
        names = sorted({*symbols, *self._numbers})
        places = {name: place for place, name in enumerate(names)}
        renumbered = np.array([places[name] for name in self._numbers], np.int32)
        for part in windows(rows):
            part["symbol"] = renumbered[part["symbol"]]
        self._count, self._numbers = 0, {}
        return names, rows

    def _numbers_of(self, symbols: npt.NDArray[np.object_]) -> int | npt.NDArray[np.int32]:
        names, numbers = symbols.tolist(), self._numbers
        distinct = dict.fromkeys(names)
        for name in distinct:
            numbers.setdefault(str(name), len(numbers))
        if len(distinct) == 1:
            return numbers[names[0]]
        return np.fromiter(map(numbers.__getitem__, names), np.int32, len(names))


def windows(rows: Rows) -> Iterator[Rows]:
    """Yield the rows as views of some at a time."""
    for first in range(0, len(rows), WINDOW):
        yield rows[first : first + WINDOW]


def sort_rows(rows: Rows, keys: Sequence[str]) -> None:
    """Sort rows in place by these columns, the most important first; equal rows keep their order.

    The rows are moved 32 bits at a time: beside them it takes two arrays of 32 bits for each row.
    """
    if is_sorted(rows, keys):
        return
    order, moved = _sorted_order(rows, keys), np.empty(len(rows), np.int32)
    words = rows.view(np.int32).reshape(len(rows), -1)
    for word in words.T:
        for first in range(0, len(rows), WINDOW):
            moved[first : first + WINDOW] = word[order[first : first + WINDOW]]
        word[:] = moved


def _sorted_order(rows: Rows, keys: Sequence[str]) -> npt.NDArray[np.signedinteger]:
    """Return the indices of the rows in order.

    Blocks of rows are sorted, then merged one range of the first key after the other: a range
    takes a slice of each block, and no key is copied as a whole.
    """
    column, blocks = rows[keys[0]], range(0, len(rows), WINDOW)
    runs = np.empty(len(rows), np.int32 if len(rows) < 1 << 31 else np.int64)
    samples = []
    for first in blocks:
        found = first + _lexsort(rows[first : first + WINDOW], keys)
        runs[first : first + WINDOW] = found
        samples.append(column[found[:: len(blocks)]])
    limits = np.unique(np.sort(np.concatenate(samples))[:: -(-WINDOW // len(blocks))])
    cuts = []
    for first in blocks:
        run = runs[first : first + WINDOW]
        inner = np.searchsorted(column[run], limits)
        cuts.append(first + np.concatenate([[0], inner, [len(run)]]))
    order, done = np.empty_like(runs), 0
    for number in range(len(limits) + 1):
        merged = np.concatenate([runs[cut[number] : cut[number + 1]] for cut in cuts])
        order[done : done + len(merged)] = merged[_lexsort(rows[merged], keys)]
        done += len(merged)
    return order


def _lexsort(rows: Rows, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    return np.lexsort([rows[key] for key in reversed(keys)])


def is_sorted(rows: Rows, keys: Sequence[str]) -> bool:
    for first in range(0, len(rows), WINDOW):
        part = rows[first : first + WINDOW + 1]
        tied = np.ones(max(0, len(part) - 1), np.bool_)
        for key in keys:
            column = np.ascontiguousarray(part[key])
            if (tied & (column[1:] < column[:-1])).any():
                return False
            tied &= column[1:] == column[:-1]
    return True


def values_before(
    symbol: npt.NDArray[np.int32], values: npt.NDArray[np.float64], latest: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the value of the row before of the same symbol.

    `latest` has the last value of each symbol of the rows before these, and then of these.
    """
    # numpy sorts 16 bits by radix, which is faster.
    small = symbol.astype(np.int16 if len(latest) <= 1 << 15 else np.int32)
    order = np.argsort(small, kind="stable")
    symbol, values = symbol[order], values[order]
    is_first = np.ones(len(symbol), np.bool_)
    is_first[1:] = symbol[1:] != symbol[:-1]
    before = np.empty(len(values))
    before[1:] = values[:-1]
    before[is_first] = latest[symbol[is_first]]
    is_last = np.roll(is_first, -1)
    latest[symbol[is_last]] = values[is_last]
    found = np.empty(len(values))
    found[order] = before
    return found
