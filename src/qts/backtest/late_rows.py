"""Sequence whose items are made of rows when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")


class LateRows(Sequence[T]):
    """Items and rows (plain tuples) in order; reading an item makes all rows items.

    A backtest makes thousands of orders and fills, which most of its readers only count. `columns`
    compute attributes of an item from its row.
    """

    def __init__(
        self, make: Callable[..., T], columns: Mapping[str, Callable[[Any], Any]] | None = None
    ) -> None:
        self._make = make
        self._columns = columns or {}
        self._entries: list[Any] = []
        self._made = 0  # so many of the first entries are items
        self.append: Callable[[T], None] = self._entries.append
        self.add_row: Callable[[tuple[Any, ...]], None] = self._entries.append

    def column(self, name: str) -> list[Any]:
        """Return an attribute of all items, without making them."""
        of_row = self._columns[name]
        return [
            of_row(each) if type(each) is tuple else getattr(each, name) for each in self._entries
        ]

    @property
    def items(self) -> list[T]:
        entries, make = self._entries, self._make
        for number in range(self._made, len(entries)):
            if type(entries[number]) is tuple:
                entries[number] = make(*entries[number])
        self._made = len(entries)
        return entries

    def __len__(self) -> int:
        return len(self._entries)

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


def column(items: Sequence[Any], name: str) -> list[Any]:
    """Return an attribute of all items of a sequence."""
    if isinstance(items, LateRows):
        return items.column(name)
    return [getattr(each, name) for each in items]
