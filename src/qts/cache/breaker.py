"""The circuit breaker: after enough failures in a row Redis is left alone for a while.

    closed ──failures in a row──▶ open ──open_s over, or a probe is due──▶ half-open
      ▲                            ▲                                          │
      └──────── it succeeded ──────┼────────── it failed ─────────────────────┘

In half-open exactly one call is let through. `try_enter(early=True)` is how a background probe
asks for that place before the time is over, so that a fault of two seconds costs two seconds
and not `open_s`. Libraries were looked at (circuitbreaker, purgatory, aiobreaker): none of them
lets a probe close the circuit early or holds half-open to one call under asyncio.
"""

from __future__ import annotations

from typing import Literal

from qts.cache.config import BreakerConfig
from qts.domain import Clock

State = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Whoever was let in says how it went, with one of `succeeded`, `failed`, `left`."""

    def __init__(self, config: BreakerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._failures = 0
        self._opened_ns = 0
        self._probing = False
        self.state: State = "closed"
        self.opened = 0
        """How often it opened."""

    def try_enter(self, *, early: bool = False) -> bool:
        if self.state == "closed":
            return True
        if self._probing or not (early or self._is_over()):
            return False
        self.state, self._probing = "half-open", True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        if self.state == "half-open":
            self.state, self._probing = "closed", False

    def failed(self) -> None:
        self._failures += 1
        if self.state == "half-open" or (
            self.state == "closed" and self._failures >= self._config.failures
        ):
            self.opened += self.state == "closed"
            self.state, self._probing = "open", False
            self._opened_ns = self._clock.monotonic_ns()

    def left(self) -> None:
        """The call ended without telling anything about the server."""
        self._probing = False

    def _is_over(self) -> bool:
        if self.state == "half-open":
            return True
        return self._clock.monotonic_ns() - self._opened_ns >= self._config.open_s * 1_000_000_000
