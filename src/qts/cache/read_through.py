"""Kinds the database knows: what is missing is loaded, once for all who miss it."""

from __future__ import annotations

import functools
from typing import TypeVar

import msgspec

from qts import telemetry
from qts.cache.entries import CachedOrder, CachedPosition, CachedRisk, CachedStrategyParams
from qts.cache.entry import CacheEntry
from qts.cache.near_cache import NearCacheSlot
from qts.cache.region import CacheRegion, CacheTiers
from qts.cache.store import Fields
from qts.domain import OperationError, QtsError

V = TypeVar("V", bound=CacheEntry)

_AHEAD_FROM_MS = 5_000  # kinds that live this long are loaded anew before they end
_AHEAD = 0.2
_NONE_MS = 1_000  # "there is none" is believed so long

log = telemetry.logger("cache")


class ReadThroughRegion(CacheRegion[V]):
    """None is an answer: the database knows of no such thing."""

    def __init__(self, kind: type[V], levels: CacheTiers) -> None:
        super().__init__(kind, levels)
        if self.ttl_ms >= _AHEAD_FROM_MS:
            self._renewed_ahead = _AHEAD

    async def get(self, name: str) -> V | None:
        if (slot := self.peek(name)) is not None:
            self.tally.near += 1
            found: V | None = self.value_of(slot)
            return found
        levels, key = self.levels, self.key(name)
        before, began_ns = levels.near.at(key), levels.clock.monotonic_ns()
        try:
            read = functools.partial(levels.store.read, [key])
            (fields,) = await levels.guard.call_with_retry(read, levels.config.read_ms)
        except OperationError:
            fields = None
        finally:
            levels.figures.reads.record(levels.clock.monotonic_ns() - began_ns)
        now_ms = levels.now_ms()
        value = self.accepted(name, fields, now_ms)
        if value is None:
            return await self.load(name)
        self.keep_told(value, before, now_ms)
        return value

    def accepted(self, name: str, fields: Fields | None, now_ms: int) -> V | None:
        """What Redis told, if it may be used.

        After a change Redis may still hold the value of before, and nobody can tell it apart, if
        it could not be told to forget it; when that one has ended, so has the slot that says so.
        """
        value = self.decoded(name, fields)
        if value is None or not self.is_fresh(value, now_ms):
            return None
        known = self.levels.near.at(self.key(name))
        if known is not None and (known.dropped or known.ver > value.ver):
            return None
        return value

    def keep_told(self, value: V, before: NearCacheSlot | None, now_ms: int) -> None:
        """Keep what Redis told and count it, unless there was news since it was asked."""
        self.tally.redis += 1
        key = self.key(value.name)
        if self.levels.near.at(key) is before:
            self.keep(key, value, self.ttl_ms - max(0, now_ms - value.received_at))

    async def load(self, name: str) -> V | None:
        """From the database, in one flight with everybody who needs the same."""
        try:
            value = await self.levels.flights.run(
                self.key(name), functools.partial(self._load, name)
            )
        except QtsError:
            self.tally.failed += 1
            raise
        self.tally.database += 1
        return value

    def forget(self, name: str) -> None:
        """At once and only here: `changed` does the rest."""
        key = self.key(name)
        self.levels.near.drop(key, self.ttl_ms)
        self.levels.behind.drop(key)
        self.levels.flights.forget(key)

    async def changed(self, name: str) -> None:
        """The database has a new value: forget the old one on every level, load the new one."""
        self.forget(name)
        levels = self.levels
        delete = functools.partial(levels.store.delete, [self.key(name)])
        try:
            await levels.guard.call_with_retry(delete, levels.config.write_ms)
        except OperationError as error:
            log.debug("Redis was not told of a change", kind=self.kind.kind, error=str(error))
        try:
            await self.load(name)
        except QtsError as error:
            log.warning("a changed value was not loaded", kind=self.kind.kind, error=str(error))

    def renew(self, name: str, slot: NearCacheSlot) -> None:
        slot.renew_ns = slot.ends_ns
        self.levels.flights.begin(self.key(name), functools.partial(self._load, name))

    async def _load(self, name: str) -> V | None:
        levels, key = self.levels, self.key(name)
        before, asked_ms = levels.near.at(key), levels.now_ms()
        found = await levels.load_truth(self.kind.kind, name)
        value = self._as_asked(name, found, asked_ms)
        if levels.near.at(key) is not before:  # news came meanwhile: that is what counts
            slot = self.peek(name)
            return self.value_of(slot) if slot is not None else value
        if value is None:
            levels.near.put(key, None, self.ttl_ms, _NONE_MS)
        elif self.keep(key, value) is not None:
            levels.behind.put(key, value, self._redis_ttl_ms())
        return value

    def _as_asked(self, name: str, found: CacheEntry | None, asked_ms: int) -> V | None:
        if found is None:
            return None
        if not isinstance(found, self.kind) or found.name != name:
            raise OperationError(
                f"asked for the {self.kind.kind} of {name}, the database told {found.name}"
            )
        return msgspec.structs.replace(found, received_at=asked_ms)


class PositionRegion(ReadThroughRegion[CachedPosition]):
    pass


class RiskRegion(ReadThroughRegion[CachedRisk]):
    pass


class OrderRegion(ReadThroughRegion[CachedOrder]):
    pass


class StrategyRegion(ReadThroughRegion[CachedStrategyParams]):
    pass
