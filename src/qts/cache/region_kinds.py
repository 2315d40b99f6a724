"""Kinds of regions: pushed by the feed, or read through to the database.

Only the feed writes a `PushRegion`: without a fresh value, `get` raises. The database holds the
values of a `ReadThroughRegion`: a miss loads the value once for all callers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TypeVar, cast

import msgspec

from qts import telemetry
from qts.cache.entries import (
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
)
from qts.cache.region import CLOCK_TOLERANCE_MS, CacheRegion, CacheTiers, NearCacheSlot
from qts.cache.store import CacheEntry, Fields
from qts.domain import CacheStaleDataError, OperationError, PriceDataUnavailableError, QtsError

V = TypeVar("V", bound=CacheEntry)

_REFRESH_AHEAD_MIN_TTL_MS = 5_000  # from this TTL on, values are reloaded before expiry
_REFRESH_AHEAD = 0.2
_ABSENT_TTL_MS = 1_000  # how long the absence of a value is cached

log = telemetry.logger("cache")


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


class ReadThroughRegion(CacheRegion[V]):
    """Region with a loader. `get` returns None if the database has no such value."""

    def __init__(self, kind: type[V], tiers: CacheTiers) -> None:
        super().__init__(kind, tiers)
        if self.ttl_ms >= _REFRESH_AHEAD_MIN_TTL_MS:
            self._refresh_ahead = _REFRESH_AHEAD
        self._complete: frozenset[str] = frozenset()  # names of the last `push_all`
        self.no_value: NearCacheSlot | None = None
        """Slot of every name that the last `push_all` did not have."""

    def push_all(self, values: Iterable[V]) -> None:
        """Store all values that exist, as one read of the database has them.

        Any other name then has no value until the TTL is over or a name is invalidated.
        """
        given = {value.name: value for value in values}
        tiers = self.tiers
        for name in self._complete - given.keys():
            tiers.near.remove(self.key(name))
        for value in given.values():
            self.push(value)
        self._complete = frozenset(given)
        now_ns, now_ms, ttl_ns = tiers.now_ns(), tiers.now_ms(), self.ttl_ms * 1_000_000
        slot = NearCacheSlot(None, 0, now_ns + ttl_ns, ttl_ns)
        slot.valid_from_ms = now_ms - CLOCK_TOLERANCE_MS
        slot.valid_until_ms = now_ms + self.ttl_ms
        self.no_value = slot

    def peek(self, name: str) -> NearCacheSlot | None:
        """Return the valid near-cache slot, or that of no value where all values are known."""
        slot, none = super().peek(name), self.no_value
        if slot is None and none is not None:
            return none if none.is_valid(self.tiers.now_ns(), self.tiers.now_ms()) else None
        return slot

    async def get(self, name: str) -> V | None:
        if (slot := self.peek(name)) is not None:
            self.hits.near += 1
            return cast("V | None", slot.value)
        tiers, key = self.tiers, self.key(name)
        before, started_ns = tiers.near.find(key), tiers.clock.monotonic_ns()
        try:
            read = functools.partial(tiers.store.read, [key])
            (fields,) = await tiers.policy.call_with_retry(read, tiers.config.read_ms)
        except OperationError:
            fields = None
        finally:
            tiers.stats.reads.record(tiers.clock.monotonic_ns() - started_ns)
        now_ms = tiers.now_ms()
        value = self.accept(name, fields, now_ms)
        if value is None:
            return await self.load(name)
        self.on_redis_hit(value, before, now_ms)
        return value

    def accept(self, name: str, fields: Fields | None, now_ms: int) -> V | None:
        """Return the value read from Redis if it may be used.

        An invalidated slot, or one with a greater version, excludes it: the invalidation may not
        have reached Redis. The slot outlasts the old value in Redis.
        """
        value = self.decode(name, fields)
        if value is None or not self.is_fresh(value, now_ms):
            return None
        known = self.tiers.near.find(self.key(name))
        if known is not None and (known.invalidated or known.ver > value.ver):
            return None
        return value

    def on_redis_hit(self, value: V, before: NearCacheSlot | None, now_ms: int) -> None:
        """Count the hit, and keep the value unless its slot changed since the read."""
        self.hits.redis += 1
        key = self.key(value.name)
        if self.tiers.near.find(key) is before:
            self.put_near(key, value, self.ttl_ms - max(0, now_ms - value.received_at))

    async def load(self, name: str) -> V | None:
        """Load from the database, in single flight with other callers."""
        key = self.key(name)
        before = self.tiers.near.find(key)
        try:
            value = await self.tiers.single_flight.run(key, functools.partial(self._load, name))
        except QtsError:
            self.hits.failed += 1
            raise
        if before is not None and before.invalidated:
            self.hits.reloaded += 1
        else:
            self.hits.database += 1
        return value

    def _drop_local(self, name: str) -> None:
        """Drop the value in this process only."""
        key, self.no_value = self.key(name), None
        self.tiers.near.drop(key, self.ttl_ms)
        self.tiers.write_behind.drop(key)
        self.tiers.single_flight.detach(key)

    async def invalidate(self, name: str) -> None:
        """Drop the value in every tier and load the new one."""
        self._drop_local(name)
        tiers = self.tiers
        delete = functools.partial(tiers.store.delete, [self.key(name)])
        try:
            await tiers.policy.call_with_retry(delete, tiers.config.write_ms)
        except OperationError as error:
            log.debug("cache key not deleted", kind=self.kind.kind, error=str(error))
        try:
            await self.load(name)
        except QtsError as error:
            log.warning("invalidated value not loaded", kind=self.kind.kind, error=str(error))

    def refresh(self, name: str, slot: NearCacheSlot) -> None:
        slot.refresh_ns = slot.expires_ns
        self.tiers.single_flight.start(self.key(name), functools.partial(self._load, name))

    async def _load(self, name: str) -> V | None:
        tiers, key = self.tiers, self.key(name)
        before, started_ms = tiers.near.find(key), tiers.now_ms()
        found = await tiers.load_value(self.kind.kind, name)
        value = self._check_loaded(name, found, started_ms)
        if tiers.near.find(key) is not before:  # changed meanwhile: the change wins
            slot = self.peek(name)
            return cast("V | None", slot.value) if slot is not None else value
        if value is None:
            tiers.near.put(key, None, self.ttl_ms, _ABSENT_TTL_MS)
        elif self.put_near(key, value) is not None:
            tiers.write_behind.put(key, value, self._redis_ttl_ms())
        return value

    def _check_loaded(self, name: str, found: CacheEntry | None, started_ms: int) -> V | None:
        if found is None:
            return None
        if not isinstance(found, self.kind) or found.name != name:
            raise OperationError(
                f"requested the {self.kind.kind} of {name}, the loader returned {found.name}"
            )
        return msgspec.structs.replace(found, received_at=started_ms)


PositionRegion = ReadThroughRegion[CachedPosition]
RiskRegion = ReadThroughRegion[CachedRisk]
OrderRegion = ReadThroughRegion[CachedOrder]
StrategyRegion = ReadThroughRegion[CachedStrategyParams]
