"""Calls to the store: timeout, retries and circuit breaker, and the write-behind queue."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, TypeVar

from qts import telemetry
from qts.cache.config import BreakerConfig, CacheConfig
from qts.cache.store import CacheEntry, CacheStore, StoreBusyError, StoreWrite
from qts.domain import Clock, OperationError, UnreachableError

State = Literal["closed", "open", "half-open"]

T = TypeVar("T")

_CLOCK_TICK_S = 0.0005  # half a tick of uvloop's clock

BATCH_MAX = 500
_RETRY_INTERVAL_S = 0.05

log = telemetry.logger("cache")


class CircuitBreaker:
    """After enough failures in a row, Redis is not called for a while.

    After a successful `try_enter`, call one of the other three methods.

        closed ──failures in a row──▶ open ──open_s over, or a probe is due──▶ half-open
          ▲                            ▲                                          │
          └──────── it succeeded ──────┼────────── it failed ─────────────────────┘

    Half-open admits exactly one call. A background probe enters before the time is over with
    `try_enter(early=True)`, so that a fault of two seconds costs two seconds and not `open_s`; if
    it fails, the circuit stays open for the rest of its time and no longer. The libraries
    circuitbreaker, purgatory and aiobreaker were considered: none lets a probe close the circuit
    early or limits half-open to one call under asyncio.
    """

    def __init__(self, config: BreakerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._failures = 0
        self._opened_ns = 0
        self._probing = False
        self._early = False  # the probe in flight came before its time
        self.state: State = "closed"
        self.opened = 0
        """Number of times it opened."""

    def try_enter(self, *, early: bool = False) -> bool:
        if self.state == "closed":
            return True
        if self._probing or not (early or self._is_probe_due()):
            return False
        self._early = not self._is_probe_due()
        self.state, self._probing = "half-open", True
        return True

    def record_success(self) -> None:
        self._failures = 0
        if self.state == "half-open":
            self.state, self._probing = "closed", False

    def record_failure(self) -> None:
        self._failures += 1
        if self.state == "half-open" or (
            self.state == "closed" and self._failures >= self._config.failures
        ):
            self.opened += self.state == "closed"
            if self.state == "closed" or not self._early:
                self._opened_ns = self._clock.monotonic_ns()
            self.state, self._probing = "open", False

    def release(self) -> None:
        """End a call that says nothing about the server."""
        if self._probing and self._early:
            self.state = "open"
        self._probing = False

    def _is_probe_due(self) -> bool:
        if self.state == "half-open":
            return True
        return self._clock.monotonic_ns() - self._opened_ns >= self._config.open_s * 1_000_000_000


class Deadline:
    """Deadline of one call in one task."""

    __slots__ = ("_cancelled_before", "_task", "expires_at", "fired")

    def __init__(self, expires_at: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        self._task = task
        self._cancelled_before = task.cancelling()
        self.expires_at = expires_at  # loop time
        self.fired = False

    def fire(self) -> None:
        self.fired = True
        self._task.cancel()

    def is_cause(self) -> bool:
        """Whether the deadline caused the cancellation just caught; call it once."""
        return self.fired and self._task.uncancel() <= self._cancelled_before


class DeadlineTimer:
    """Deadlines of many calls, served by one timer; for one event loop.

    asyncio.timeout creates and cancels a timer each time, and on uvloop that costs as much as
    decoding four values. Here a call registers its deadline, and a timer, set for the earliest one,
    cancels the calls that are due. It cancels as asyncio.timeout does: another cancellation of the
    task at the same time is not mistaken for the timeout.
    """

    def __init__(self) -> None:
        self._deadlines: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf

    def set(self, expires_at: float) -> Deadline:
        """Register a deadline of the running task until it is cleared."""
        deadline = Deadline(expires_at)
        self._deadlines.add(deadline)
        if expires_at < self._due_at:
            self._schedule(expires_at)
        return deadline

    def clear(self, deadline: Deadline) -> None:
        self._deadlines.discard(deadline)

    def _schedule(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = asyncio.get_running_loop().call_at(due_at, self._expire_due)

    def _expire_due(self) -> None:
        now = asyncio.get_running_loop().time() + _CLOCK_TICK_S
        self._timer, self._due_at = None, math.inf
        due = [deadline for deadline in self._deadlines if deadline.expires_at <= now]
        for deadline in sorted(due, key=lambda deadline: deadline.expires_at):
            self._deadlines.discard(deadline)
            deadline.fire()
        if self._deadlines:
            self._schedule(min(deadline.expires_at for deadline in self._deadlines))


class CircuitOpenError(UnreachableError):
    """Redis was not called: it failed too often recently."""


class CallPolicy:
    """Retries are safe, since every call of CacheStore is idempotent."""

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        self.breaker = CircuitBreaker(config.breaker, clock)
        self._retries = config.retries
        self._wait_s = config.retry_wait_ms / 1000
        self._clock = clock
        self._timer = DeadlineTimer()

    def call_once(self, call: Callable[[], Awaitable[T]], timeout_ms: int) -> Awaitable[T]:
        """Return an attempt, to be awaited at once."""
        if not self.breaker.try_enter():
            raise CircuitOpenError("circuit open: the cache server failed too often")
        return self._attempt(call, _deadline(timeout_ms))

    async def call_with_retry(self, call: Callable[[], Awaitable[T]], timeout_ms: int) -> T:
        """Call, and retry within the timeout while Redis is unreachable."""
        deadline = _deadline(timeout_ms)
        for left in range(self._retries, -1, -1):
            if not self.breaker.try_enter():
                raise CircuitOpenError("circuit open: the cache server failed too often")
            try:
                return await self._attempt(call, deadline)
            except UnreachableError:
                now = asyncio.get_running_loop().time()
                if not left or now + self._wait_s >= deadline:
                    raise
            await self._clock.sleep(self._wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def probe(self, call: Callable[[], Awaitable[T]], timeout_ms: int) -> T | None:
        """Try to close an open circuit; return None if it fails or the circuit is closed."""
        if self.breaker.state == "closed" or not self.breaker.try_enter(early=True):
            return None
        try:
            return await self._attempt(call, _deadline(timeout_ms))
        except OperationError:
            return None

    async def _attempt(self, call: Callable[[], Awaitable[T]], expires_at: float) -> T:
        deadline = self._timer.set(expires_at)
        try:
            reply = await call()
        except asyncio.CancelledError:
            if not deadline.is_cause():
                self.breaker.release()
                raise
            self.breaker.record_failure()
            raise UnreachableError("the cache server did not reply in time") from None
        except UnreachableError:
            self.breaker.record_failure()
            raise
        except StoreBusyError:
            self.breaker.release()
            raise
        except OperationError:  # a refusal, so the server is up
            self.breaker.record_success()
            raise
        except BaseException:
            self.breaker.release()
            raise
        finally:
            self._timer.clear(deadline)
        self.breaker.record_success()
        return reply


def _deadline(timeout_ms: int) -> float:
    return asyncio.get_running_loop().time() + timeout_ms / 1000


class PendingWrite(NamedTuple):
    value: CacheEntry
    expires_ns: int
    queued_ns: int


class WriteBehindQueue:
    """Bounded queue to Redis: the newest value of each key, in batches.

    A value waits at most `flush_ms`. A batch that Redis refuses is kept for the next attempt until
    the TTLs of its values are over; an expired value is never written. With `queue_max` keys
    pending, a new one displaces the oldest.
    """

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
