"""Policy of every call to the store: timeout, retries and circuit breaker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qts.cache.breaker import CircuitBreaker
from qts.cache.config import CacheConfig
from qts.cache.deadlines import DeadlineTimer
from qts.cache.store import StoreBusyError
from qts.domain import Clock, OperationError, UnreachableError

T = TypeVar("T")


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
