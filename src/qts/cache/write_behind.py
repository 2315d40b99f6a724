"""Write-behind queue to Redis: the newest value of each key, in batches.

A value waits at most `flush_ms`. A batch that Redis refuses is kept for the next attempt until
the TTLs of its values are over; an expired value is never written.
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

BATCH_MAX = 500
_RETRY_INTERVAL_S = 0.05

log = telemetry.logger("cache")


class PendingWrite(NamedTuple):
    value: CacheEntry
    expires_ns: int
    queued_ns: int


class WriteBehindQueue:
    """Bounded queue: with `queue_max` keys pending, a new one displaces the oldest."""

    def __init__(
        self, store: CacheStore, policy: CallPolicy, config: CacheConfig, clock: Clock
    ) -> None:
        self._store = store
        self._policy = policy
        self._config = config
        self._clock = clock
        self._pending: dict[str, PendingWrite] = {}
        self._dropped: set[str] = set()  # since the batch in flight was taken
        self._wake = asyncio.Event()
        self.written = 0
        self.dropped = 0
        self.failed = 0
        """Batches that Redis refused."""

    @property
    def depth(self) -> int:
        return len(self._pending)

    @property
    def oldest_ms(self) -> float:
        first = next(iter(self._pending.values()), None)
        return (self._clock.monotonic_ns() - first.queued_ns) / 1e6 if first else 0.0

    def put(self, key: str, value: CacheEntry, ttl_ms: int) -> None:
        """Queue the value without waiting; a key keeps its place when its value is replaced."""
        now_ns = self._clock.monotonic_ns()
        before = self._pending.get(key)
        if before is None and len(self._pending) >= self._config.queue_max:
            del self._pending[next(iter(self._pending))]
            self.dropped += 1
        queued_ns = before.queued_ns if before else now_ns
        self._pending[key] = PendingWrite(value, now_ns + ttl_ms * 1_000_000, queued_ns)
        self._wake.set()

    def drop(self, key: str) -> None:
        """Remove the pending value; a batch in flight that fails does not bring it back."""
        self._pending.pop(key, None)
        self._dropped.add(key)

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(self._config.flush_ms / 1000)
            if not await self.flush():
                await self._clock.sleep(_RETRY_INTERVAL_S)

    async def flush(self) -> bool:
        """Write everything pending; return False if Redis failed."""
        while self._pending:
            batch = self._take()
            write = functools.partial(self._write, batch)
            try:
                self.written += await self._policy.call_once(write, self._config.write_ms)
            except OperationError as error:
                self.failed += 1
                self._put_back(batch)
                if due := telemetry.log_every(10, "cache write"):
                    log.warning("cache write failed; retrying", error=str(error), **due)
                return False
        self._wake.clear()
        return True

    def _take(self) -> dict[str, PendingWrite]:
        self._dropped.clear()
        if len(self._pending) <= BATCH_MAX:
            batch, self._pending = self._pending, {}
            return batch
        return {key: self._pending.pop(key) for key in list(self._pending)[:BATCH_MAX]}

    async def _write(self, batch: dict[str, PendingWrite]) -> int:
        """Write the values that have not expired; return how many."""
        now_ns = self._clock.monotonic_ns()
        entries = (
            store_write(key, write.value, (write.expires_ns - now_ns) // 1_000_000)
            for key, write in batch.items()
            if write.expires_ns - now_ns >= 1_000_000
        )
        return len(await self._store.write(entries))

    def _put_back(self, batch: dict[str, PendingWrite]) -> None:
        now_ns = self._clock.monotonic_ns()
        live = {
            key: write
            for key, write in batch.items()
            if write.expires_ns > now_ns and key not in self._dropped
        }
        newer = self._pending
        self._pending = live | newer
        while len(self._pending) > self._config.queue_max:
            del self._pending[next(iter(self._pending))]
            self.dropped += 1


def store_write(key: str, value: CacheEntry, ttl_ms: int) -> StoreWrite:
    if value.varies:
        return StoreWrite.of(key, value.ver, ttl_ms, value.fields(), value.sides())
    names = value.__struct_fields__
    return StoreWrite(key, value.ver, ttl_ms, names, value.texts(), None, value.kind)
