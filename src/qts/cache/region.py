"""Cache region: values of one kind in the near cache, in Redis and, for some, the database.

The near cache holds values in this process, which expire by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from qts import telemetry
from qts.cache.call_policy import CallPolicy, WriteBehindQueue, store_write
from qts.cache.config import CacheConfig
from qts.cache.stats import CacheStats
from qts.cache.store import CacheEntry, CacheStore, Fields
from qts.domain import Clock, OperationError, RefusedError, SystemClock, UnreachableError

T = TypeVar("T")

V = TypeVar("V", bound=CacheEntry)

CLOCK_TOLERANCE_MS = 50  # clocks of two machines may differ by this much
_JITTER_MIN_TTL_MS = 5_000
_JITTER = 0.1

_NEVER_MS = 2**63

log = telemetry.logger("cache")


class CacheLoader(Protocol):
    """Source of the values of record: the database."""

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        """Return the current value, or None if there is none."""
        ...


@dataclass(frozen=True)
class CacheTiers:
    """Tiers and helpers that all regions share."""

    config: CacheConfig
    clock: Clock
    store: CacheStore
    policy: CallPolicy
    near: NearCache
    write_behind: WriteBehindQueue
    single_flight: SingleFlight
    stats: CacheStats
    loader: CacheLoader
    now_ms: Callable[[], int]  # by the wall clock
    now_ns: Callable[[], int]  # by the monotonic clock

    async def load_value(self, kind: str, name: str) -> CacheEntry | None:
        try:
            async with asyncio.timeout(self.config.load_timeout_ms / 1000):
                return await self.loader.load(kind, name)
        except TimeoutError:
            raise UnreachableError(
                f"no {kind} of {name} from the database within {self.config.load_timeout_ms} ms"
            ) from None


class CacheRegion(Generic[V]):
    """Operations of every region, for one event loop; `peek` and `push` never wait."""

    def __init__(self, kind: type[V], tiers: CacheTiers) -> None:
        self.kind = kind
        self.tiers = tiers
        self.ttl_ms = tiers.config.ttl.of(kind.kind)
        self.hits = tiers.stats.hit_counts[kind.kind]
        self.key = functools.lru_cache(4096)(lambda name: tiers.config.prefix + kind.key(name))
        self._from_fields = kind.from_fields
        self._name_field = kind.named_by
        self._last_ver = 0
        self._refresh_ahead = 0.0  # share of the TTL before expiry

    def push(self, value: V) -> bool:
        """Store here now, in Redis within `flush_ms`; return False if a newer value exists."""
        value = self._stamp(value)
        key = self.key(value.name)
        if self.put_near(key, value) is None:
            return False
        self.tiers.write_behind.put(key, value, self._redis_ttl_ms())
        return True

    async def put(self, value: V) -> bool:
        """Write through to the near cache and Redis; queue the write if Redis fails."""
        value = self._stamp(value)
        tiers, key = self.tiers, self.key(value.name)
        if self.put_near(key, value) is None:
            return False
        tiers.write_behind.drop(key)
        entry = store_write(key, value, self._redis_ttl_ms())
        write = functools.partial(tiers.store.write, [entry])
        try:
            await tiers.policy.call_with_retry(write, tiers.config.write_ms)
        except OperationError:
            tiers.write_behind.put(key, value, self._redis_ttl_ms())
        return True

    def peek(self, name: str) -> NearCacheSlot | None:
        """Return the valid near-cache slot of the name, or None; start a refresh if it is due."""
        now_ns = self.tiers.clock.monotonic_ns()
        slot = self.tiers.near.get(self.key(name), now_ns, self.tiers.now_ms())
        if slot is not None and slot.refresh_ns <= now_ns:
            self.refresh(name, slot)
        return slot

    def refresh(self, name: str, slot: NearCacheSlot) -> None:
        """Reload a value that is in use and expires soon; does nothing unless overridden."""

    def put_near(self, key: str, value: V, remaining_ms: int | None = None) -> NearCacheSlot | None:
        """Store in the near cache; return None if a newer version is known."""
        slot = self.tiers.near.put(key, value, self.ttl_ms, remaining_ms)
        if slot is not None:
            slot.valid_from_ms, slot.valid_until_ms = self.valid_range(value)
            if self._refresh_ahead:
                remaining_ms = self.ttl_ms if remaining_ms is None else remaining_ms
                slot.refresh_ns -= int(remaining_ms * 1_000_000 * self._refresh_ahead)
        return slot

    def valid_range(self, value: CacheEntry) -> tuple[int, int]:
        """Return the wall-clock range, in Unix ms, in which the value may be used.

        A time before its receipt means that the clock went back: the value is then old.
        """
        return value.received_at - CLOCK_TOLERANCE_MS, value.received_at + self.ttl_ms

    def is_fresh(self, value: CacheEntry, now_ms: int) -> bool:
        from_ms, until_ms = self.valid_range(value)
        return from_ms <= now_ms <= until_ms

    def decode(
        self, name: str, fields: Fields | None, make: Callable[[Fields], V] | None = None
    ) -> V | None:
        """Decode the fields of a hash; return None if there are none or they are invalid."""
        if fields is None:
            return None
        try:
            value = self._from_fields(fields) if make is None else make(fields)
        except (RefusedError, KeyError, ValueError, ArithmeticError) as error:
            self._log_invalid(name, str(error))
            return None
        if getattr(value, self._name_field) != name:
            self._log_invalid(name, f"stored under another name: {value.name}")
            return None
        return value

    def _log_invalid(self, name: str, reason: str) -> None:
        if due := telemetry.log_every(10, "cache value"):
            log.error(
                "invalid value in Redis; ignored",
                kind=self.kind.kind,
                name=name,
                reason=reason,
                **due,
            )

    def _stamp(self, value: V) -> V:
        """Add a time of receipt and a version where the caller gave none."""
        if not isinstance(value, self.kind):
            raise TypeError(f"expected {self.kind.__name__}, not {type(value).__name__}")
        if value.received_at and value.ver:
            return value
        now_us = int(self.tiers.clock.now().timestamp() * 1_000_000)
        if not value.ver:
            self._last_ver = max(self._last_ver + 1, now_us)
        return msgspec.structs.replace(
            value,
            received_at=value.received_at or now_us // 1000,
            ver=value.ver or self._last_ver,
        )

    def _redis_ttl_ms(self) -> int:
        """Return the TTL, shortened at random if long, so keys do not all expire at once."""
        if self.ttl_ms < _JITTER_MIN_TTL_MS:
            return self.ttl_ms
        return round(self.ttl_ms * (1 - _JITTER * random.random()))  # noqa: S311 - no secret


def wall_ms(clock: Clock) -> Callable[[], int]:
    """Return a function that reads the wall clock in milliseconds.

    The system clock is read without a datetime, which takes longer than the rest of a PreCheck.
    """
    if type(clock) is SystemClock:
        return lambda: time.time_ns() // 1_000_000
    return lambda: int(clock.now().timestamp() * 1000)


def monotonic_ns(clock: Clock) -> Callable[[], int]:
    """Return a function that reads the monotonic clock in nanoseconds."""
    return time.monotonic_ns if type(clock) is SystemClock else clock.monotonic_ns


class NearCacheSlot:
    """Value of a key. For one TTL after expiry its version still keeps older ones out."""

    __slots__ = (
        "expires_ns",
        "invalidated",
        "refresh_ns",
        "valid_from_ms",
        "valid_until_ms",
        "value",
        "ver",
        "version_until_ns",
    )

    def __init__(self, value: CacheEntry | None, ver: int, expires_ns: int, ttl_ns: int) -> None:
        self.value = value
        self.ver = ver
        self.expires_ns = expires_ns
        self.version_until_ns = expires_ns + ttl_ns
        self.refresh_ns = expires_ns  # when to reload; the region may set it earlier
        self.valid_from_ms = 0  # wall-clock range of validity; narrowed by the region
        self.valid_until_ms = _NEVER_MS
        self.invalidated = False  # changed in the database: Redis may hold the old value

    def is_valid(self, now_ns: int, now_ms: int) -> bool:
        """Whether both clocks allow the value to be used."""
        return self.expires_ns > now_ns and self.valid_from_ms <= now_ms <= self.valid_until_ms


class NearCache:
    """Slots by key, for one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[str, NearCacheSlot] = {}
        self.find = self._slots.get
        """Return the slot, valid or not; every put and drop replaces it."""

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, key: str, now_ns: int, now_ms: int) -> NearCacheSlot | None:
        """Return the slot if it is valid by both clocks."""
        slot = self._slots.get(key)
        return slot if slot is not None and slot.is_valid(now_ns, now_ms) else None

    def put(
        self, key: str, value: CacheEntry | None, ttl_ms: int, remaining_ms: int | None = None
    ) -> NearCacheSlot | None:
        """Store for `remaining_ms`, at most its TTL; return None if a greater version is known."""
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        ver = value.ver if value is not None else 0
        if known is not None and known.version_until_ns > now_ns and known.ver > ver:
            if value is not None:
                return None
            ver = known.ver
        remaining_ms = ttl_ms if remaining_ms is None else min(remaining_ms, ttl_ms)
        slot = NearCacheSlot(value, ver, now_ns + remaining_ms * 1_000_000, ttl_ms * 1_000_000)
        self._slots[key] = slot
        return slot

    def remove(self, key: str) -> None:
        """Delete the slot with its version."""
        self._slots.pop(key, None)

    def drop(self, key: str, ttl_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        slot = NearCacheSlot(None, known.ver if known else 0, now_ns, ttl_ms * 1_000_000)
        slot.invalidated = True
        self._slots[key] = slot

    def sweep(self) -> int:
        """Delete slots that hold neither a value nor a version; return how many."""
        now_ns = self._clock.monotonic_ns()
        expired = [key for key, slot in self._slots.items() if slot.version_until_ns <= now_ns]
        for key in expired:
            del self._slots[key]
        return len(expired)


class SingleFlight:
    """Loads in flight, for one event loop: callers that miss one key wait for one load of it."""

    def __init__(self) -> None:
        self._in_flight: dict[str, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.shared = 0
        """Callers that joined a load in flight."""

    async def run(self, key: str, load: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the load of the key, started if needed; cancelling a caller does not stop it."""
        return await asyncio.shield(self.start(key, load))

    def start(self, key: str, load: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        task = self._in_flight.get(key)
        if task is not None:
            self.shared += 1
            return task
        task = self.spawn(load())
        self._in_flight[key] = task
        task.add_done_callback(lambda task: self._on_loaded(key, task))
        return task

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in a task that is kept until it ends; its error is not logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def detach(self, key: str) -> None:
        """Let later callers start a new load."""
        self._in_flight.pop(key, None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _on_loaded(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._in_flight.get(key) is task:
            del self._in_flight[key]

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
