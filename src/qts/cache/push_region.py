"""Kinds that only the feed can tell: without a fresh value there is an error, never a guess."""

from __future__ import annotations

import functools
from typing import TypeVar

from qts.cache.entries import CachedOrderBook, CachedPrice
from qts.cache.entry import CacheEntry
from qts.cache.near_cache import NearCacheSlot
from qts.cache.region import CacheRegion, CacheTiers
from qts.cache.store import Fields
from qts.domain import CacheStaleDataError, OperationError, PriceDataUnavailableError

V = TypeVar("V", bound=CacheEntry)


class PushRegion(CacheRegion[V]):
    """What Redis tells is not kept here: the next question deserves the next tick."""

    def __init__(self, kind: type[V], levels: CacheTiers) -> None:
        super().__init__(kind, levels)
        self._dated_by = kind.dated_by
        self._apart_ms = levels.config.venue_age_ms

    async def get(self, name: str) -> V:
        if (slot := self.peek(name)) is not None:
            self.tally.near += 1
            kept: V = self.value_of(slot)
            return kept
        levels = self.levels
        began_ns = levels.clock.monotonic_ns()
        try:
            value = await levels.guard.call_with_retry(
                functools.partial(self._read, name), levels.config.read_ms
            )
        except OperationError as error:
            self.tally.failed += 1
            raise PriceDataUnavailableError(f"no {self.kind.kind} of {name}: {error}") from error
        finally:
            levels.figures.reads.record(levels.clock.monotonic_ns() - began_ns)
        found = self.checked(name, value, levels.now_ms())
        self.tally.redis += 1
        return found

    def accepted(self, name: str, fields: Fields | None, now_ms: int) -> V:
        """What Redis told, or refused."""
        return self.checked(name, self.decoded(name, fields), now_ms)

    def keep_told(self, value: V, before: NearCacheSlot | None, now_ms: int) -> None:  # noqa: ARG002
        """Count it; it is not kept."""
        self.tally.redis += 1

    def checked(self, name: str, value: V | None, now_ms: int) -> V:
        """Fresh, or refused."""
        if value is not None and self.is_fresh(value, now_ms):
            return value
        last = value or self._last(name)
        if last is None:
            self.tally.absent += 1
            raise PriceDataUnavailableError(f"no {self.kind.kind} of {name} is known")
        self.tally.stale += 1
        age_ms = now_ms - last.received_at
        raise CacheStaleDataError(
            f"the {self.kind.kind} of {name} is {age_ms} ms old; {self.ttl_ms} ms are allowed"
            f" (its venue time is {now_ms - last.happened_at} ms ago;"
            f" {self.levels.config.venue_age_ms} ms are allowed)"
        )

    def usable(self, value: CacheEntry) -> tuple[int, int]:
        """Received a moment ago, and not long after the venue said it."""
        from_ms, until_ms = super().usable(value)
        said_at: int = getattr(value, self._dated_by)
        return max(from_ms, said_at - self._apart_ms), min(until_ms, said_at + self._apart_ms)

    async def _read(self, name: str) -> V | None:
        (fields,) = await self.levels.store.read([self.key(name)])
        return self.decoded(name, fields)

    def _last(self, name: str) -> CacheEntry | None:
        slot: NearCacheSlot | None = self.levels.near.at(self.key(name))
        return slot.value if slot is not None else None


class PriceRegion(PushRegion[CachedPrice]):
    pass


class OrderBookRegion(PushRegion[CachedOrderBook]):
    DEPTH = 50

    async def _read(self, name: str) -> CachedOrderBook | None:
        found = await self.levels.store.read_book(self.key(name), self.DEPTH)
        if found is None:
            return None
        fields, sides = found
        return self.decoded(
            name, fields, functools.partial(CachedOrderBook.from_parts, sides=sides)
        )
