"""Sliding windows of one key: requests in the last second, minute and day.

One log of completion times serves all windows: a window of limit L has capacity when the request
L - in_flight places back in the log is older than the window. That is O(1) per window. Lower
priorities have lower limits (`ceilings`), so that higher ones find capacity.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from datetime import timedelta, timezone

from qts.domain import Clock
from qts.venues.ratelimit.limits import (
    DAY_NS,
    MINUTE_NS,
    SECOND_NS,
    RateLimitConfig,
    RequestPriority,
    ceilings,
)

NEVER = 1 << 62
SEOUL = timezone(timedelta(hours=9))


class SlidingWindows:
    """Pure counter of granted and completed requests; never waits."""

    def __init__(self, limits: RateLimitConfig, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._size = max(limits.per_second, limits.per_minute, limits.per_day)
        self._log = array("q", bytes(8 * self._size))
        self.done = self.in_flight = 0
        self._day_used, self._day_ends_ns = 0, self._next_midnight_ns()
        self._watched_per_s = 0.0
        self.set_rate(limits.per_second)

    def reserve_watched(self, per_second: float) -> None:
        """Set how much bursts and scans leave to watched symbols."""
        self._watched_per_s = per_second
        self.set_rate(self._per_second)

    def set_rate(self, per_second: int) -> None:
        """Set the limit of the one-second window, which throttling may lower."""
        limits, self._per_second = self._limits, per_second
        spans = [(per_second, SECOND_NS), (limits.per_minute, MINUTE_NS)]
        self._calendar: tuple[int, ...] | None = None
        if limits.day == "rolling":
            spans.append((limits.per_day, DAY_NS))
        else:
            self._calendar = ceilings(limits, limits.per_day, DAY_NS)
        watched = self._watched_per_s
        each = [(ceilings(limits, limit, span, watched), span) for limit, span in spans]
        self._windows = [[(tops[p], span) for tops, span in each] for p in RequestPriority]

    def opens_ns(self, priority: int, now: int) -> int:
        """Return when all windows have capacity; NEVER: not before a request completes."""
        opens = now
        done, size, log, in_flight = self.done, self._size, self._log, self.in_flight
        for ceiling, span in self._windows[priority]:
            back = ceiling - in_flight
            if back <= 0:
                return NEVER
            if back <= done:
                free = log[(done - back) % size] + span
                if free >= opens:
                    opens = free + 1
        if self._calendar is not None:
            self._roll_day(now)
            if self._day_used + in_flight >= self._calendar[priority]:
                opens = max(opens, self._day_ends_ns)
        return opens

    def complete(self, now: int) -> None:
        """Move one request from in flight to the log: its reply came, or never will."""
        self._log[self.done % self._size] = now
        self.done += 1
        self.in_flight -= 1
        self._day_used += 1

    def used(self, span_ns: int, now: int) -> int:
        return self._count_since(now - span_ns) + self.in_flight

    def remaining(self, now: int) -> dict[str, int]:
        """Return the requests left of each window; changes nothing, so any thread may call it."""
        if self._calendar is None:
            day_used = self._count_since(now - DAY_NS)
        else:
            day_used = self._day_used if now < self._day_ends_ns else 0
        used = {
            "second": (self._per_second, self._count_since(now - SECOND_NS)),
            "minute": (self._limits.per_minute, self._count_since(now - MINUTE_NS)),
            "day": (self._limits.per_day, day_used),
        }
        return {name: max(0, top - done - self.in_flight) for name, (top, done) in used.items()}

    def remaining_within(self, seconds: float) -> int:
        """Return how many requests the day allows in the next `seconds`."""
        now = self._clock.monotonic_ns()
        if self._calendar is not None:
            self._roll_day(now)
            used = self._day_used
        else:
            used = self._count_since(now + round(seconds * 1e9) - DAY_NS)
        return max(0, self._limits.per_day - used - self.in_flight)

    def restore(self, history: Iterable[tuple[int, int]]) -> None:
        """Count requests of earlier processes, given as (age in ns, requests)."""
        now = self._clock.monotonic_ns()
        midnight_age = now - (self._day_ends_ns - DAY_NS)
        for age, count in sorted(history, reverse=True):
            for _ in range(min(count, self._size)):
                self._log[self.done % self._size] = now - age
                self.done += 1
            self._day_used += count if age <= midnight_age else 0

    def _count_since(self, moment: int) -> int:
        """Return the completions after a moment, by binary search."""
        low, high = max(0, self.done - self._size), self.done
        while low < high:
            middle = (low + high) // 2
            if self._log[middle % self._size] < moment:
                low = middle + 1
            else:
                high = middle
        return self.done - low

    def _roll_day(self, now: int) -> None:
        if now >= self._day_ends_ns:
            self._day_used = 0
            self._day_ends_ns = self._next_midnight_ns()

    def _next_midnight_ns(self) -> int:
        """Return midnight on the monotonic clock: setting the wall clock must not add a quota."""
        wall = self._clock.now().astimezone(SEOUL)
        passed = timedelta(hours=wall.hour, minutes=wall.minute, seconds=wall.second)
        left = timedelta(days=1) - passed - timedelta(microseconds=wall.microsecond)
        return self._clock.monotonic_ns() + round(left.total_seconds() * 1e9)
