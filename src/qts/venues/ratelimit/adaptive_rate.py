"""How fast the venue lets us be: half the rate at a refusal, one more for ten clean seconds.

At one request a second there is nothing left to halve: pauses that double take its place, and
ten clean seconds after one begin them anew.
"""

from __future__ import annotations

from qts.venues.ratelimit.limits import SECOND_NS

GROW_NS = 10 * SECOND_NS
PAUSE_MAX_S = 60.0


class AdaptiveRate:
    """Pure state; moments are nanoseconds of a clock that never goes back."""

    def __init__(self, per_second: int, now: int) -> None:
        self._full = self.rate = per_second
        self.slowed = False
        self._cut_ns = self._grown_ns = now
        self._pauses = 0
        self.paused_until_ns = 0
        self.refusals = 0

    def refused(self, now: int, retry_after_s: float | None = None) -> None:
        """Refusals of one second are one event: they speak of the same rate."""
        self.refusals += 1
        fresh = self.refusals == 1 or now - self._cut_ns >= SECOND_NS
        if fresh and self.rate == 1:
            if now - max(self._cut_ns, self.paused_until_ns) >= GROW_NS:
                self._pauses = 0
            self._pauses += 1
            retry_after_s = max(retry_after_s or 0.0, min(2.0 ** (self._pauses - 1), PAUSE_MAX_S))
        if fresh:
            self._cut_ns = self._grown_ns = now
            self.rate = max(1, self.rate // 2)
            self.slowed = self.rate < self._full
        if retry_after_s:
            self.hold(now, retry_after_s)

    def hold(self, now: int, seconds: float) -> None:
        self.paused_until_ns = max(self.paused_until_ns, now + round(seconds * 1e9))

    def grew(self, now: int) -> bool:
        """Whether the rate is higher now than when last asked."""
        if not self.slowed or now - self._grown_ns < GROW_NS:
            return False
        steps = (now - self._grown_ns) // GROW_NS
        self._grown_ns += steps * GROW_NS
        self.rate = min(self._full, self.rate + steps)
        self.slowed = self.rate < self._full
        self._pauses = 0
        return True
