"""One kind of value on its levels: this process, Redis, and for some the database."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from qts import telemetry
from qts.cache.call_policy import CallPolicy
from qts.cache.config import CacheConfig
from qts.cache.entry import CacheEntry
from qts.cache.near_cache import NearCache, NearCacheSlot
from qts.cache.single_flight import SingleFlight
from qts.cache.stats import CacheStats
from qts.cache.store import CacheStore, Fields
from qts.cache.write_behind import WriteBehindQueue, entry_of
from qts.domain import Clock, OperationError, RefusedError, SystemClock, UnreachableError

V = TypeVar("V", bound=CacheEntry)

CLOCK_SLACK_MS = 50  # clocks of two machines may differ by so much; more is a clock that jumped
_LONG_MS = 5_000
_JITTER = 0.1

log = telemetry.logger("cache")


class CacheLoader(Protocol):
    """The third level: the database."""

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        """The value as it is now; None when there is none."""
        ...


@dataclass(frozen=True)
class CacheTiers:
    """What all kinds share."""

    config: CacheConfig
    clock: Clock
    store: CacheStore
    guard: CallPolicy
    near: NearCache
    behind: WriteBehindQueue
    flights: SingleFlight
    figures: CacheStats
    truth: CacheLoader
    now_ms: Callable[[], int]  # by the wall clock
    now_ns: Callable[[], int]  # by the monotonic clock

    async def load_truth(self, kind: str, name: str) -> CacheEntry | None:
        try:
            async with asyncio.timeout(self.config.load_timeout_ms / 1000):
                return await self.truth.load(kind, name)
        except TimeoutError:
            raise UnreachableError(
                f"the database did not tell the {kind} of {name} within {self.config.load_timeout_ms} ms"
            ) from None


class CacheRegion(Generic[V]):
    """What every kind can do. For one event loop; `try_` and `push` never wait."""

    def __init__(self, kind: type[V], levels: CacheTiers) -> None:
        self.kind = kind
        self.levels = levels
        self.ttl_ms = levels.config.ttl.of(kind.kind)
        self.tally = levels.figures.tallies[kind.kind]
        self.key = functools.lru_cache(4096)(lambda name: levels.config.prefix + kind.key(name))
        self._made = kind.from_fields
        self._named_by = kind.named_by
        self._last_ver = 0
        self._renewed_ahead = 0.0  # this share of its life before its end

    def try_get(self, name: str) -> V | None:
        """What this process knows and may still use."""
        slot = self.peek(name)
        return self.value_of(slot) if slot is not None else None

    def push(self, value: V) -> bool:
        """Keep it here at once and in Redis a few milliseconds later; False when it is old."""
        value = self._stamped(value)
        key = self.key(value.name)
        if self.keep(key, value) is None:
            return False
        self.levels.behind.put(key, value, self._redis_ttl_ms())
        return True

    async def put(self, value: V) -> bool:
        """Write through: here, then in Redis. Redis may be away: it gets the value later."""
        value = self._stamped(value)
        levels, key = self.levels, self.key(value.name)
        if self.keep(key, value) is None:
            return False
        levels.behind.drop(key)
        entry = entry_of(key, value, self._redis_ttl_ms())
        write = functools.partial(levels.store.write, [entry])
        try:
            await levels.guard.call_with_retry(write, levels.config.write_ms)
        except OperationError:
            levels.behind.put(key, value, self._redis_ttl_ms())
        return True

    def peek(self, name: str) -> NearCacheSlot | None:
        """The live slot of this name."""
        now_ns = self.levels.clock.monotonic_ns()
        slot = self.levels.near.get(self.key(name), now_ns, self.levels.now_ms())
        if slot is not None and slot.renew_ns <= now_ns:
            self.renew(name, slot)
        return slot

    def renew(self, name: str, slot: NearCacheSlot) -> None:
        """It ends soon and is asked for."""

    def value_of(self, slot: NearCacheSlot) -> Any:
        """Only values of this kind lie under its keys."""
        return slot.value

    def keep(self, key: str, value: V, life_ms: int | None = None) -> NearCacheSlot | None:
        """In this process, for as long as both clocks allow; None when a newer one is known."""
        slot = self.levels.near.put(key, value, self.ttl_ms, life_ms)
        if slot is not None:
            slot.from_ms, slot.until_ms = self.usable(value)
            if self._renewed_ahead:
                life_ms = self.ttl_ms if life_ms is None else life_ms
                slot.renew_ns -= int(life_ms * 1_000_000 * self._renewed_ahead)
        return slot

    def usable(self, value: CacheEntry) -> tuple[int, int]:
        """From when until when the wall clock lets it be used.

        Before it was received is a clock that went back: that makes it old, not new.
        """
        return value.received_at - CLOCK_SLACK_MS, value.received_at + self.ttl_ms

    def is_fresh(self, value: CacheEntry, now_ms: int) -> bool:
        from_ms, until_ms = self.usable(value)
        return from_ms <= now_ms <= until_ms

    def decoded(
        self, name: str, fields: Fields | None, make: Callable[[Fields], V] | None = None
    ) -> V | None:
        """None where there is nothing, or nothing that can be trusted."""
        if fields is None:
            return None
        try:
            value = self._made(fields) if make is None else make(fields)
        except (RefusedError, KeyError, ValueError, ArithmeticError) as error:
            self._distrust(name, str(error))
            return None
        if getattr(value, self._named_by) != name:
            self._distrust(name, f"it is the value of {value.name}")
            return None
        return value

    def _distrust(self, name: str, why: str) -> None:
        if due := telemetry.log_every(10, "cache value"):
            log.error(
                "a value in Redis was not used", kind=self.kind.kind, name=name, why=why, **due
            )

    def _stamped(self, value: V) -> V:
        """With a moment of receipt and a version, where the caller gave none."""
        if not isinstance(value, self.kind):
            raise TypeError(f"a {self.kind.__name__} is kept here, not {type(value).__name__}")
        if value.received_at and value.ver:
            return value
        now_us = int(self.levels.clock.now().timestamp() * 1_000_000)
        if not value.ver:
            self._last_ver = max(self._last_ver + 1, now_us)
        return msgspec.structs.replace(
            value,
            received_at=value.received_at or now_us // 1000,
            ver=value.ver or self._last_ver,
        )

    def _redis_ttl_ms(self) -> int:
        """Long TTLs end at slightly different times, so that keys do not all go at once."""
        if self.ttl_ms < _LONG_MS:
            return self.ttl_ms
        return round(self.ttl_ms * (1 - _JITTER * random.random()))  # noqa: S311 - no secret


def wall_ms(clock: Clock) -> Callable[[], int]:
    """How to ask the wall clock, in milliseconds.

    A moment of the machine's clock is taken without a datetime: making one takes longer than all
    the rest of a PreCheck.
    """
    if type(clock) is SystemClock:
        return lambda: time.time_ns() // 1_000_000
    return lambda: int(clock.now().timestamp() * 1000)


def monotonic_ns(clock: Clock) -> Callable[[], int]:
    """The same for the monotonic clock."""
    return time.monotonic_ns if type(clock) is SystemClock else clock.monotonic_ns
