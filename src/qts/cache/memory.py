"""In-process store: for tests, and for a single-process run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from qts.cache.commands import book_keys
from qts.cache.entry import BookSides
from qts.cache.store import LIMIT_REACHED, UNKNOWN_COUNT, CountRequest, Fields, Health, StoreWrite
from qts.domain import Clock, SystemClock

Side = list[tuple[int, str]]


class MemoryStore:
    """CacheStore whose calls are atomic and never wait."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._values: dict[
            str, tuple[int, Fields | Side | set[str]]
        ] = {}  # with expiry (monotonic ns)

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        now = self._clock.monotonic_ns()
        return [self._hash(key, now) for key in keys]

    async def read_book(self, key: str, depth: int) -> tuple[Fields, BookSides] | None:
        now = self._clock.monotonic_ns()
        found = self._hash(key, now)
        if found is None:
            return None
        _, bids, asks = (self._get(each, now) for each in book_keys(key))
        bids, asks = (side if isinstance(side, list) else [] for side in (bids, asks))
        return found, BookSides(bids[:depth], asks[:depth])

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        now = self._clock.monotonic_ns()
        return [self._write(entry, now) for entry in entries]

    async def delete(self, keys: Sequence[str]) -> int:
        now = self._clock.monotonic_ns()
        existing = sum(self._get(key, now) is not None for key in keys)
        for key in keys:
            self._values.pop(key, None)
        return existing

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        now = self._clock.monotonic_ns()
        members = self._get(count.key, now)
        if not isinstance(members, set):
            if known is None:
                return UNKNOWN_COUNT
            members = set()
            wall_ms = int(self._clock.now().timestamp() * 1000)
            self._set(count.key, now, count.until_ms - wall_ms, members)
        members.update(known or ())
        if count.member not in members and len(members) >= count.limit:
            return LIMIT_REACHED
        members.add(count.member)
        return len(members)

    async def keys(self, prefix: str) -> list[str]:
        now = self._clock.monotonic_ns()
        matching = [key for key in self._values if key.startswith(prefix)]
        return sorted(key for key in matching if self._get(key, now) is not None)

    async def health(self) -> Health:
        return Health("memory", 0, 0, 0, 1, 0.0)

    def _write(self, entry: StoreWrite, now: int) -> bool:
        stored = self._hash(entry.key, now)
        if stored is not None and int(stored["ver"]) > entry.ver:
            return False
        self._set(entry.key, now, entry.ttl_ms, entry.fields)
        if entry.sides is not None:
            _, bid, ask = book_keys(entry.key)
            self._set(bid, now, entry.ttl_ms, sorted(entry.sides.bids, reverse=True))
            self._set(ask, now, entry.ttl_ms, sorted(entry.sides.asks))
        return True

    def _set(self, key: str, now: int, ttl_ms: int, value: Fields | Side | set[str]) -> None:
        if value or isinstance(value, set):  # Redis has no empty keys
            self._values[key] = (now + ttl_ms * 1_000_000, value)
        else:
            self._values.pop(key, None)

    def _get(self, key: str, now: int) -> Fields | Side | set[str] | None:
        until_ns, value = self._values.get(key, (0, None))
        if value is not None and until_ns <= now:
            del self._values[key]
            return None
        return value

    def _hash(self, key: str, now: int) -> Fields | None:
        found = self._get(key, now)
        return dict(found) if isinstance(found, dict) else None
