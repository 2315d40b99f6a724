"""Regions that only the feed writes: without a fresh value, `get` raises."""

from __future__ import annotations

import functools
from typing import TypeVar, cast

from qts.cache.entries import CachedOrderBook, CachedPrice
from qts.cache.entry import CacheEntry
from qts.cache.near_cache import NearCacheSlot
from qts.cache.region import CacheRegion, CacheTiers
from qts.cache.store import Fields
from qts.domain import CacheStaleDataError, OperationError, PriceDataUnavailableError

V = TypeVar("V", bound=CacheEntry)


class PushRegion(CacheRegion[V]):
    """Region that only the feed writes. Values read from Redis do not enter the near cache."""

    def __init__(self, kind: type[V], tiers: CacheTiers) -> None:
        super().__init__(kind, tiers)
        self._time_field = kind.dated_by
        self._venue_age_ms = tiers.config.venue_age_ms

    async def get(self, name: str) -> V:
        if (slot := self.peek(name)) is not None:
            self.hits.near += 1
            return cast("V", slot.value)
        tiers = self.tiers
        started_ns = tiers.clock.monotonic_ns()
        try:
            value = await tiers.policy.call_with_retry(
                functools.partial(self._read, name), tiers.config.read_ms
            )
        except OperationError as error:
            self.hits.failed += 1
            raise PriceDataUnavailableError(f"no {self.kind.kind} of {name}: {error}") from error
        finally:
            tiers.stats.reads.record(tiers.clock.monotonic_ns() - started_ns)
        found = self._check_fresh(name, value, tiers.now_ms())
        self.hits.redis += 1
        return found

    def accept(self, name: str, fields: Fields | None, now_ms: int) -> V:
        """Decode and return the value read from Redis, or raise if it is missing or stale."""
        return self._check_fresh(name, self.decode(name, fields), now_ms)

    def on_redis_hit(self, value: V, before: NearCacheSlot | None, now_ms: int) -> None:  # noqa: ARG002
        """Count the hit."""
        self.hits.redis += 1

    def _check_fresh(self, name: str, value: V | None, now_ms: int) -> V:
        """Return a fresh value; raise PriceDataUnavailableError or CacheStaleDataError."""
        if value is not None and self.is_fresh(value, now_ms):
            return value
        last = value or self._last(name)
        if last is None:
            self.hits.absent += 1
            raise PriceDataUnavailableError(f"no {self.kind.kind} of {name}")
        self.hits.stale += 1
        age_ms = now_ms - last.received_at
        raise CacheStaleDataError(
            f"the {self.kind.kind} of {name} is {age_ms} ms old; {self.ttl_ms} ms are allowed"
            f" (its venue time is {now_ms - last.happened_at} ms ago;"
            f" {self.tiers.config.venue_age_ms} ms are allowed)"
        )

    def valid_range(self, value: CacheEntry) -> tuple[int, int]:
        """Narrow the range to `venue_age_ms` around the venue's time."""
        from_ms, until_ms = super().valid_range(value)
        venue_ms: int = getattr(value, self._time_field)
        return max(from_ms, venue_ms - self._venue_age_ms), min(
            until_ms, venue_ms + self._venue_age_ms
        )

    async def _read(self, name: str) -> V | None:
        (fields,) = await self.tiers.store.read([self.key(name)])
        return self.decode(name, fields)

    def _last(self, name: str) -> CacheEntry | None:
        slot: NearCacheSlot | None = self.tiers.near.find(self.key(name))
        return slot.value if slot is not None else None


PriceRegion = PushRegion[CachedPrice]


class OrderBookRegion(PushRegion[CachedOrderBook]):
    DEPTH = 50

    async def _read(self, name: str) -> CachedOrderBook | None:
        found = await self.tiers.store.read_book(self.key(name), self.DEPTH)
        if found is None:
            return None
        fields, sides = found
        return self.decode(name, fields, functools.partial(CachedOrderBook.from_parts, sides=sides))
