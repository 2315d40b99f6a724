"""Request rate that adapts to the venue: half on throttling, one more after ten clean seconds.

At one request a second the rate cannot be halved; pauses that double replace it, and start again
at one second after ten clean seconds.
"""

from __future__ import annotations

from qts.venues.ratelimit.limits import SECOND_NS

GROW_NS = 10 * SECOND_NS
MAX_PAUSE_S = 60.0


class AdaptiveRate:
    """Pure state machine; timestamps are nanoseconds of a monotonic clock."""

    def __init__(self, per_second: int, now: int) -> None:
        self._full = self.rate = per_second
        self.slowed = False
        self._cut_ns = self._grown_ns = now
        self._pauses = 0
        self.paused_until_ns = 0
        self.throttled = 0

    def on_throttled(self, now: int, retry_after_s: float | None = None) -> None:
        """Cut the rate; replies of one second count once, they concern the same rate."""
        self.throttled += 1
        fresh = self.throttled == 1 or now - self._cut_ns >= SECOND_NS
        if fresh and self.rate == 1:
            if now - max(self._cut_ns, self.paused_until_ns) >= GROW_NS:
                self._pauses = 0
            self._pauses += 1
            retry_after_s = max(retry_after_s or 0.0, min(2.0 ** (self._pauses - 1), MAX_PAUSE_S))
        if fresh:
            self._cut_ns = self._grown_ns = now
            self.rate = max(1, self.rate // 2)
            self.slowed = self.rate < self._full
        if retry_after_s:
            self.pause_for(now, retry_after_s)

    def pause_for(self, now: int, seconds: float) -> None:
        self.paused_until_ns = max(self.paused_until_ns, now + round(seconds * 1e9))

    def try_grow(self, now: int) -> bool:
        """Raise the rate for the clean time that has passed; return whether it changed."""
        if not self.slowed or now - self._grown_ns < GROW_NS:
            return False
        steps = (now - self._grown_ns) // GROW_NS
        self._grown_ns += steps * GROW_NS
        self.rate = min(self._full, self.rate + steps)
        self.slowed = self.rate < self._full
        self._pauses = 0
        return True
