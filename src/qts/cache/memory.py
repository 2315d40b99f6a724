"""The store within this process: for tests, and for a machine that runs one process only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from qts.cache.commands import book_keys
from qts.cache.store import LIMIT_REACHED, UNKNOWN_COUNT, Count, Entry, Fields, Health
from qts.cache.value import Sides
from qts.domain import Clock, SystemClock

Side = list[tuple[int, str]]


class MemoryStore:
    """A Store; see there. Nothing in it ever waits, so everything in it is atomic."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._kept: dict[str, tuple[int, Fields | Side | set[str]]] = {}  # until (monotonic ns)

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        return [self._hash(key) for key in keys]

    async def read_book(self, key: str, depth: int) -> tuple[Fields, Sides] | None:
        found = self._hash(key)
        if found is None:
            return None
        _, bids, asks = (self._get(each) for each in book_keys(key))
        bids, asks = (side if isinstance(side, list) else [] for side in (bids, asks))
        return found, Sides(bids[:depth], asks[:depth])

    async def write(self, entries: Iterable[Entry]) -> list[bool]:
        return [self._write(entry) for entry in entries]

    async def delete(self, keys: Sequence[str]) -> int:
        there = sum(self._get(key) is not None for key in keys)
        for key in keys:
            self._kept.pop(key, None)
        return there

    async def count(self, count: Count, known: Collection[str] | None = None) -> int:
        members = self._get(count.key)
        if not isinstance(members, set):
            if known is None:
                return UNKNOWN_COUNT
            members = set()
            wall_ms = int(self._clock.now().timestamp() * 1000)
            self._keep(count.key, count.until_ms - wall_ms, members)
        members.update(known or ())
        if count.member not in members and len(members) >= count.limit:
            return LIMIT_REACHED
        members.add(count.member)
        return len(members)

    async def keys(self, prefix: str) -> list[str]:
        here = [key for key in self._kept if key.startswith(prefix)]
        return sorted(key for key in here if self._get(key) is not None)

    async def health(self) -> Health:
        return Health("memory", 0, 0, 0, 1, 0.0)

    def _write(self, entry: Entry) -> bool:
        seen = self._hash(entry.key)
        if seen is not None and int(seen["ver"]) > entry.ver:
            return False
        self._keep(entry.key, entry.ttl_ms, entry.fields)
        if entry.sides is not None:
            _, bid, ask = book_keys(entry.key)
            self._keep(bid, entry.ttl_ms, sorted(entry.sides.bids, reverse=True))
            self._keep(ask, entry.ttl_ms, sorted(entry.sides.asks))
        return True

    def _keep(self, key: str, ttl_ms: int, value: Fields | Side | set[str]) -> None:
        if value or isinstance(value, set):  # an empty side is no key, as in Redis
            self._kept[key] = (self._clock.monotonic_ns() + ttl_ms * 1_000_000, value)
        else:
            self._kept.pop(key, None)

    def _get(self, key: str) -> Fields | Side | set[str] | None:
        until_ns, value = self._kept.get(key, (0, None))
        if value is not None and until_ns <= self._clock.monotonic_ns():
            del self._kept[key]
            return None
        return value

    def _hash(self, key: str) -> Fields | None:
        found = self._get(key)
        return dict(found) if isinstance(found, dict) else None
