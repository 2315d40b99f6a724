"""Clock for tests without an event loop, and the worst window of a list of arrivals."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)


class SteppedClock:
    """Wall and monotonic time that only `move` advances; the wall time may also be set."""

    def __init__(self, start: datetime = START, monotonic_ns: int = 10**12) -> None:
        self.wall = start
        self.ns = monotonic_ns

    def now(self) -> datetime:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.ns

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"unexpected sleep of {seconds} s")

    def move(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)
        self.wall += timedelta(seconds=seconds)


def worst_window(arrivals_ns: list[int], span_ns: int) -> int:
    """Return the most arrivals in any window, both ends included."""
    ordered = sorted(arrivals_ns)
    return max(
        (i - bisect_left(ordered, at - span_ns) + 1 for i, at in enumerate(ordered)), default=0
    )
