"""Port of the shared key-value store under the cache.

Every method is idempotent: a write carries a version, a count an id. A caller whose reply was lost
may repeat the call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, Self

import msgspec

from qts.cache.entry import BookSides
from qts.domain import OperationError

Fields = dict[str, str]

UNKNOWN_COUNT = -1  # the store has no such count: repeat with the known members
LIMIT_REACHED = -2


class StoreBusyError(OperationError):
    """Too many calls in flight on our side; says nothing about the server."""


class StoreWrite(msgspec.Struct, frozen=True):
    """Value to write, with its version among the fields; `sides` makes it an order book."""

    key: str
    ver: int
    ttl_ms: int
    names: tuple[str, ...]
    texts: Sequence[str]
    sides: BookSides | None = None
    layout: str = ""  # all entries of a layout have the same fields

    @classmethod
    def of(
        cls, key: str, ver: int, ttl_ms: int, fields: Fields, sides: BookSides | None = None
    ) -> Self:
        return cls(key, ver, ttl_ms, tuple(fields), tuple(fields.values()), sides)

    @property
    def fields(self) -> Fields:
        return dict(zip(self.names, self.texts, strict=True))


class CountRequest(msgspec.Struct, frozen=True):
    """Member to count once, below a limit, until a time (Unix ms)."""

    key: str
    member: str
    limit: int
    until_ms: int


class Health(msgspec.Struct, frozen=True):
    """Version and load of the server."""

    version: str
    used_memory: int
    max_memory: int  # 0: no limit
    evicted_keys: int
    clients: int
    pool_use: float  # 0 to 1: share of the allowed calls that are in flight


class CacheStore(Protocol):
    """Raises UnreachableError without a reply, StoreBusyError, or OperationError on refusal."""

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        """Read hashes in one round trip; None where there is none."""
        ...

    async def read_book(self, key: str, depth: int) -> tuple[Fields, BookSides] | None:
        """Read both sides of a book at one instant."""
        ...

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        """Write each value with its TTL atomically; False where a greater version exists.

        The server may receive the first value before the iterator yields the last.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> int:
        """Delete keys; return how many existed."""
        ...

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        """Return the number of members including this one, LIMIT_REACHED, or UNKNOWN_COUNT.

        `known` members are added first; without them an unknown count is not started.
        """
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys, sorted; scans the whole server without blocking it."""
        ...

    async def health(self) -> Health: ...
