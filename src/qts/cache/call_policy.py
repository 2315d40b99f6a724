"""Every call to the store: its time limit, its repeats, the circuit breaker, its latency."""

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
    """Redis was not asked: it failed too often just now."""


class CallPolicy:
    """A repeat is always safe here: the port has no call that counts twice."""

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        self.breaker = CircuitBreaker(config.breaker, clock)
        self._retries = config.retries
        self._wait_s = config.retry_wait_ms / 1000
        self._clock = clock
        self._alarm = DeadlineTimer()

    def call_once(self, ask: Callable[[], Awaitable[T]], limit_ms: int) -> Awaitable[T]:
        """One attempt, to be awaited at once."""
        if not self.breaker.try_enter():
            raise CircuitOpenError("the cache is left alone: it failed too often just now")
        return self._attempt(ask, _deadline(limit_ms))

    async def call_with_retry(self, ask: Callable[[], Awaitable[T]], limit_ms: int) -> T:
        """Repeated while Redis does not answer, within the limit."""
        deadline = _deadline(limit_ms)
        for left in range(self._retries, -1, -1):
            if not self.breaker.try_enter():
                raise CircuitOpenError("the cache is left alone: it failed too often just now")
            try:
                return await self._attempt(ask, deadline)
            except UnreachableError:
                now = asyncio.get_running_loop().time()
                if not left or now + self._wait_s >= deadline:
                    raise
            await self._clock.sleep(self._wait_s)
        raise AssertionError("the last round returns or raises")

    async def probe(self, ask: Callable[[], Awaitable[T]], limit_ms: int) -> T | None:
        """Look whether an open circuit can be closed; None when it cannot, or is not open."""
        if self.breaker.state == "closed" or not self.breaker.try_enter(early=True):
            return None
        try:
            return await self._attempt(ask, _deadline(limit_ms))
        except OperationError:
            return None

    async def _attempt(self, ask: Callable[[], Awaitable[T]], deadline: float) -> T:
        limit = self._alarm.set(deadline)
        try:
            answer = await ask()
        except asyncio.CancelledError:
            if not limit.is_cause():
                self.breaker.left()
                raise
            self.breaker.failed()
            raise UnreachableError("the cache did not answer in time") from None
        except UnreachableError:
            self.breaker.failed()
            raise
        except StoreBusyError:
            self.breaker.left()
            raise
        except OperationError:  # it said no, so it is there
            self.breaker.succeeded()
            raise
        except BaseException:
            self.breaker.left()
            raise
        finally:
            self._alarm.clear(limit)
        self.breaker.succeeded()
        return answer


def _deadline(limit_ms: int) -> float:
    return asyncio.get_running_loop().time() + limit_ms / 1000
