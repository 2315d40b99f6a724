"""Circuit breaker: after enough failures in a row, Redis is not called for a while.

    closed ──failures in a row──▶ open ──open_s over, or a probe is due──▶ half-open
      ▲                            ▲                                          │
      └──────── it succeeded ──────┼────────── it failed ─────────────────────┘

Half-open admits exactly one call. A background probe enters before the time is over with
`try_enter(early=True)`, so that a fault of two seconds costs two seconds and not `open_s`; if it
fails, the circuit stays open for the rest of its time and no longer. The libraries circuitbreaker,
purgatory and aiobreaker were considered: none lets a probe close the circuit early or limits
half-open to one call under asyncio.
"""

from __future__ import annotations

from typing import Literal

from qts.cache.config import BreakerConfig
from qts.domain import Clock

State = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """State machine; after a successful `try_enter`, call one of the other three methods."""

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
