"""Pacing of a producer: the exact count of messages in a span, and the intended time of each.

The intended rate is constant, or alternates: every period begins with `on_ms` at `factor` times
the rate and continues at `base_factor` times the rate. Message k (from 0) is due at the moment
from which the integral of the rate is above k; a run sends the integer part of the integral over
its duration. Fractions, not floats: 40,000,000 is 40,000,000 on every machine.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

import msgspec

_NS = 1_000_000_000
_MS = 1_000


class BurstProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`on_ms` of every `period_ms` at `factor` times the rate, the rest at `base_factor` times."""

    period_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
    on_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
    factor: Annotated[float, msgspec.Meta(ge=0.001, le=1000)]
    base_factor: Annotated[float, msgspec.Meta(ge=0, le=1000)]


class Pacing(msgspec.Struct, frozen=True):
    """Send times of one producer."""

    per_second: float
    burst: BurstProfile | None = None

    @property
    def peak_per_second(self) -> float:
        if self.burst is None:
            return self.per_second
        return self.per_second * max(self.burst.factor, self.burst.base_factor)

    def count(self, seconds: float) -> int:
        """Return the number of messages sent in the first `seconds`."""
        return int(self._integral(exact(seconds)))

    def due_ns(self, index: int) -> int:
        """Return the intended time of message `index` in nanoseconds after the start."""
        if self.burst is None:
            return int(index * _NS / exact(self.per_second))
        on, fast, slow = self._shape(self.burst)
        period = Fraction(self.burst.period_ms, _MS)
        periods, rest = divmod(Fraction(index), on * fast + (period - on) * slow)
        within = rest / fast if rest <= on * fast else on + (rest - on * fast) / slow
        return int((periods * period + within) * _NS)

    def _integral(self, seconds: Fraction) -> Fraction:
        if self.burst is None:
            return exact(self.per_second) * seconds
        on, fast, slow = self._shape(self.burst)
        period = Fraction(self.burst.period_ms, _MS)
        periods, rest = divmod(seconds, period)
        whole = periods * (on * fast + (period - on) * slow)
        return whole + min(rest, on) * fast + max(rest - on, Fraction(0)) * slow

    def _shape(self, burst: BurstProfile) -> tuple[Fraction, Fraction, Fraction]:
        rate = exact(self.per_second)
        return (
            Fraction(burst.on_ms, _MS),
            rate * exact(burst.factor),
            rate * exact(burst.base_factor),
        )


def exact(value: float) -> Fraction:
    """Return the number as it was written: 0.1 is one tenth."""
    return Fraction(str(value))
