"""Sequences and mappings whose items are made when they are first read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple, Protocol, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from qts.domain import Tick

T = TypeVar("T")

_WIDE = Context(prec=80)
_MOST_DIGITS = 28  # sums with no more are exact in any order
_ZERO = Decimal(0)


class Column(NamedTuple):
    """Attribute of an item, of its row and of itself."""

    of_row: Callable[[Any], Any]
    of_item: Callable[[Any], Any]


class RowPart(ABC):
    """Rows in a form of their own, of which columns and sums can be had without making them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows, which are made now."""

    def column(self, name: str) -> list[Any] | None:  # noqa: ARG002 - one that has none
        """Return an attribute of the items; None: their rows have to be made."""
        return None

    def floats(self, name: str) -> list[float] | None:  # noqa: ARG002
        """Return the same as floats."""
        return None

    def total(self, name: str) -> tuple[Decimal, Decimal] | None:  # noqa: ARG002
        """Return the exact sum of an attribute, and that of its values without their signs."""
        return None


class LateRows(Sequence[T]):
    """Items, rows (plain tuples) and parts of rows in order; reading an item makes all of them.

    A backtest makes thousands of orders and fills, which most of its readers only count. `columns`
    are attributes that can be had without making the items.
    """

    def __init__(self, make: Callable[..., T], columns: Mapping[str, Column] | None = None) -> None:
        self._make = make
        self._columns = columns or {}
        self._entries: list[Any] = []
        self._made = 0  # so many of the first entries are items
        self._parts = self._more = 0  # parts among the entries; their rows without one for each
        self.append: Callable[[T], None] = self._entries.append
        self.add_row: Callable[[tuple[Any, ...]], None] = self._entries.append

    def add_part(self, part: RowPart) -> None:
        """Add the rows of a part."""
        if len(part):
            self._entries.append(part)
            self._parts += 1
            self._more += len(part) - 1

    def column(self, name: str) -> list[Any]:
        """Return an attribute of all items, without making them."""
        return self._flat(name, lambda part: part.column(name), lambda value: value)

    def floats(self, name: str) -> list[float]:
        """Return the same as floats."""
        return self._flat(name, lambda part: part.floats(name), float)

    def _flat(
        self,
        name: str,
        of_part: Callable[[RowPart], list[Any] | None],
        convert: Callable[[Any], Any],
    ) -> list[Any]:
        of_row, of_item = self._columns[name]
        found: list[Any] = []
        for each in self._entries:
            if type(each) is tuple:
                found.append(convert(of_row(each)))
            elif not isinstance(each, RowPart):
                found.append(convert(of_item(each)))
            elif (values := of_part(each)) is not None:
                found += values
            else:
                found += [convert(of_row(row)) for row in each.rows()]
        return found

    def total(self, name: str) -> Decimal:
        """Return the sum of an attribute of all items, as decimals add it up one by one."""
        if not self._parts:
            return sum(self.column(name), _ZERO)
        of_row, of_item = self._columns[name]
        found = size = _ZERO
        for each in self._entries:
            parts = each.total(name) if isinstance(each, RowPart) else None
            if parts is None:
                if isinstance(each, RowPart):
                    return sum(self.column(name), _ZERO)
                value = of_row(each) if type(each) is tuple else of_item(each)
                parts = value, _WIDE.abs(value)
            found, size = _WIDE.add(found, parts[0]), _WIDE.add(size, parts[1])
        is_exact = len(size.as_tuple().digits) <= _MOST_DIGITS
        return found if is_exact else sum(self.column(name), _ZERO)

    @property
    def items(self) -> list[T]:
        entries, make = self._entries, self._make
        if self._parts:
            rest: list[Any] = []
            for each in entries[self._made :]:
                if isinstance(each, RowPart):
                    rest += each.rows()
                else:
                    rest.append(each)
            entries[self._made :] = rest
            self._parts = self._more = 0
        for number in range(self._made, len(entries)):
            if type(entries[number]) is tuple:
                entries[number] = make(*entries[number])
        self._made = len(entries)
        return entries

    def __len__(self) -> int:
        return len(self._entries) + self._more

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.items[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return tuple(self.items) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self.items))

    def __repr__(self) -> str:
        return repr(tuple(self.items))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Be stored and sent as a tuple."""
        return tuple, (self.items,)


class TickWriter(Protocol):
    """Core that writes last ticks to a dict when they are read."""

    def write_ticks(self) -> None: ...
    def write_tick(self, symbol: str) -> None: ...
    def drop_tick(self, symbol: str) -> None:
        """Leave the last tick of a symbol to the caller."""


class PlayedTicks(Mapping[str, Tick]):
    """Last ticks that a core writes to a dict on a read; `write_one` writes that of a symbol."""

    def __init__(
        self,
        ticks: dict[str, Tick],
        write: Callable[[], None],
        write_one: Callable[[str], None] | None = None,
    ) -> None:
        self._ticks = ticks
        self._write = write
        self._write_one = write_one or (lambda _symbol: write())

    def __getitem__(self, symbol: str) -> Tick:
        self._write_one(symbol)
        return self._ticks[symbol]

    def get(self, symbol: str, default: Any = None) -> Any:
        self._write_one(symbol)
        return self._ticks.get(symbol, default)

    def __contains__(self, symbol: object) -> bool:
        self._write()
        return symbol in self._ticks

    def __iter__(self) -> Iterator[str]:
        self._write()
        return iter(self._ticks)

    def __len__(self) -> int:
        self._write()
        return len(self._ticks)

    def __repr__(self) -> str:
        self._write()
        return repr(self._ticks)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Be copied and stored as a dict."""
        self._write()
        return dict, (self._ticks,)


class LatestTicks(Mapping[str, Tick]):
    """Mapping of last ticks over rows of price, volume, bid, ask and time."""

    def __init__(self, indices: Mapping[str, int], rows: npt.NDArray[np.float64]) -> None:
        self._indices = indices
        self._rows = rows

    def __getitem__(self, symbol: str) -> Tick:
        if (tick := self.get(symbol)) is None:
            raise KeyError(symbol)
        return cast(Tick, tick)

    def get(self, symbol: str, default: Any = None) -> Any:
        index = self._indices.get(symbol)
        if index is None:
            return default
        price, volume, bid, ask, at = self._rows[index].tolist()
        return Tick(symbol, price, volume, bid, ask, at) if price else default

    def __contains__(self, symbol: object) -> bool:
        index = self._indices.get(symbol) if isinstance(symbol, str) else None
        return index is not None and bool(self._rows[index, 0])

    def __iter__(self) -> Iterator[str]:
        return (symbol for symbol, index in self._indices.items() if self._rows[index, 0])

    def __len__(self) -> int:
        return int(np.count_nonzero(self._rows[:, 0]))


class ScannedTicks(LatestTicks):
    """Last ticks of a compiled scan; those that were read are kept until `clear`."""

    def __init__(self, indices: Mapping[str, int], rows: npt.NDArray[np.float64]) -> None:
        super().__init__(indices, rows)
        self._made: dict[str, Tick] = {}
        self.clear = self._made.clear

    def get(self, symbol: str, default: Any = None) -> Any:
        tick = self._made.get(symbol)
        if tick is None:
            tick = super().get(symbol)
            if tick is None:
                return default
            self._made[symbol] = tick
        return tick
