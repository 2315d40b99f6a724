"""The port: what the cache asks of a shared memory.

Every method may be called twice with the same effect as once: a write carries a version, a
count an id. So a caller whose answer was lost may simply ask again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, Self

import msgspec

from qts.cache.entry import BookSides
from qts.domain import OperationError

Fields = dict[str, str]

UNKNOWN_COUNT = -1  # the store has not heard of this count: give it what is known
LIMIT_REACHED = -2


class StoreBusyError(OperationError):
    """Too many calls at once on our side; it says nothing about the server."""


class StoreWrite(msgspec.Struct, frozen=True):
    """One value to write; its fields name the version too. With sides it is an order book."""

    key: str
    ver: int
    ttl_ms: int
    names: tuple[str, ...]
    texts: Sequence[str]
    sides: BookSides | None = None
    layout: str = ""  # all entries of a layout, before and after, have the very same fields

    @classmethod
    def of(
        cls, key: str, ver: int, ttl_ms: int, fields: Fields, sides: BookSides | None = None
    ) -> Self:
        return cls(key, ver, ttl_ms, tuple(fields), tuple(fields.values()), sides)

    @property
    def fields(self) -> Fields:
        return dict(zip(self.names, self.texts, strict=True))


class CountRequest(msgspec.Struct, frozen=True):
    """One member to be counted once, below a limit, until a moment (Unix ms)."""

    key: str
    member: str
    limit: int
    until_ms: int


class Health(msgspec.Struct, frozen=True):
    """How the server is."""

    version: str
    used_memory: int
    max_memory: int  # 0: no limit
    evicted_keys: int
    clients: int
    pool_use: float  # 0 to 1: how much of what may be under way at once is


class CacheStore(Protocol):
    """Raises Unreachable when there is no answer, Busy, or Failed when the server said no."""

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        """One round trip; None where there is nothing."""
        ...

    async def read_book(self, key: str, depth: int) -> tuple[Fields, BookSides] | None:
        """Both sides as they were at one moment."""
        ...

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        """Each value and its TTL in one step; False where a greater version was there.

        The server may have the first of them before the last one is made.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> int:
        """How many of them were there."""
        ...

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        """How many members there are with this one, LIMIT_REACHED, or UNKNOWN_COUNT.

        `known` members are there before it is counted; without them an unknown count is not
        begun.
        """
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Sorted; walks the whole server without blocking it."""
        ...

    async def health(self) -> Health: ...
