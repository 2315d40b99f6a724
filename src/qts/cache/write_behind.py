"""Writes to Redis behind the caller's back: the newest value of each key, in batches.

A value waits at most `flush_ms`, whether or not another one comes. What Redis does not take is
kept for the next batch until its TTL is over; a batch never brings back what has expired.
"""

from __future__ import annotations

import asyncio
import functools
from typing import NamedTuple

from qts import telemetry
from qts.cache.call_policy import CallPolicy
from qts.cache.config import CacheConfig
from qts.cache.entry import CacheEntry
from qts.cache.store import CacheStore, StoreWrite
from qts.domain import Clock, OperationError

BATCH = 500
_RETRY_S = 0.05

log = telemetry.logger("cache")


class PendingWrite(NamedTuple):
    value: CacheEntry
    ends_ns: int
    since_ns: int


class WriteBehindQueue:
    """Bounded: with `queue_max` keys waiting, the one that waits longest makes room."""

    def __init__(
        self, store: CacheStore, guard: CallPolicy, config: CacheConfig, clock: Clock
    ) -> None:
        self._store = store
        self._guard = guard
        self._config = config
        self._clock = clock
        self._waiting: dict[str, PendingWrite] = {}
        self._some = asyncio.Event()
        self.written = 0
        self.dropped = 0
        self.failed = 0
        """Batches that Redis did not take."""

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def oldest_ms(self) -> float:
        first = next(iter(self._waiting.values()), None)
        return (self._clock.monotonic_ns() - first.since_ns) / 1e6 if first else 0.0

    def put(self, key: str, value: CacheEntry, ttl_ms: int) -> None:
        """Never waits. A key keeps its place in the line when its value is replaced."""
        now_ns = self._clock.monotonic_ns()
        before = self._waiting.get(key)
        if before is None and len(self._waiting) >= self._config.queue_max:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1
        since_ns = before.since_ns if before else now_ns
        self._waiting[key] = PendingWrite(value, now_ns + ttl_ms * 1_000_000, since_ns)
        self._some.set()

    def drop(self, key: str) -> None:
        self._waiting.pop(key, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            await self._clock.sleep(self._config.flush_ms / 1000)
            if not await self.flush():
                await self._clock.sleep(_RETRY_S)

    async def flush(self) -> bool:
        """Write all that waits; False when Redis did not take it."""
        while self._waiting:
            batch = self._take()
            write = functools.partial(self._write, batch)
            try:
                self.written += await self._guard.call_once(write, self._config.write_ms)
            except OperationError as error:
                self.failed += 1
                self._put_back(batch)
                if due := telemetry.log_every(10, "cache write"):
                    log.warning("the cache does not take writes", error=str(error), **due)
                return False
        self._some.clear()
        return True

    def _take(self) -> dict[str, PendingWrite]:
        if len(self._waiting) <= BATCH:
            batch, self._waiting = self._waiting, {}
            return batch
        return {key: self._waiting.pop(key) for key in list(self._waiting)[:BATCH]}

    async def _write(self, batch: dict[str, PendingWrite]) -> int:
        """How many of them were still worth it."""
        now_ns = self._clock.monotonic_ns()
        entries = (
            entry_of(key, each.value, (each.ends_ns - now_ns) // 1_000_000)
            for key, each in batch.items()
            if each.ends_ns - now_ns >= 1_000_000
        )
        return len(await self._store.write(entries))

    def _put_back(self, batch: dict[str, PendingWrite]) -> None:
        now_ns = self._clock.monotonic_ns()
        alive = {key: each for key, each in batch.items() if each.ends_ns > now_ns}
        newer = self._waiting
        self._waiting = alive | newer
        while len(self._waiting) > self._config.queue_max:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1


def entry_of(key: str, value: CacheEntry, ttl_ms: int) -> StoreWrite:
    if value.varies:
        return StoreWrite.of(key, value.ver, ttl_ms, value.fields(), value.sides())
    names = value.__struct_fields__
    return StoreWrite(key, value.ver, ttl_ms, names, value.texts(), None, value.kind)
