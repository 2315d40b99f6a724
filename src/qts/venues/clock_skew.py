"""Difference between a venue's clock and ours, measured on its replies."""

from __future__ import annotations

import statistics
from collections import deque
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime

from qts import telemetry
from qts.domain import Clock

SAMPLES = 15
MAX_S = 1.0  # unless the settings say otherwise (venues.max_skew_s)
MAX_ROUND_TRIP_S = 1.0  # a slower reply says too little about the moment it was written
KEPT_NS = 15 * 60 * 10**9  # an order may be searched for after one of the clocks was set
TOLERANCE = timedelta(seconds=2)  # venues give times to the second, and the skew is an estimate

_gauge = telemetry.gauge(
    "qts_venue_clock_skew_seconds", "How far the venue's clock is ahead of ours.", ("venue",)
)


class ClockSkew:
    """Median over the last replies; positive where the venue's clock is ahead."""

    def __init__(self, venue: str, clock: Clock) -> None:
        self.max_s = MAX_S
        self._venue = venue
        self._clock = clock
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        # Time and size of the skews since the largest one of the last 15 minutes, largest first.
        self._largest: deque[tuple[int, float]] = deque()

    def record(self, date: str | None, sent_ns: int) -> None:
        """Add a reply by its Date header and the monotonic time of its request.

        The header is cut to the second, and the reply was written between request and arrival:
        half a second and half of the round trip are the best guess.
        """
        round_trip_s = (self._clock.monotonic_ns() - sent_ns) / 1e9
        if date is None or not 0 <= round_trip_s <= MAX_ROUND_TRIP_S:
            return
        try:
            written = parsedate_to_datetime(date)
        except ValueError:
            return
        if written.tzinfo is None:  # "-0000" is UTC too
            written = written.replace(tzinfo=UTC)
        ahead_s = (written - self._clock.now()).total_seconds()
        self._samples.append(ahead_s + 0.5 + round_trip_s / 2)
        seconds = statistics.median(self._samples)
        self._keep_largest(abs(seconds))
        _gauge.labels(self._venue).set(seconds)

    def _keep_largest(self, size_s: float) -> None:
        now_ns, largest = self._clock.monotonic_ns(), self._largest
        while largest and largest[-1][1] <= size_s:
            largest.pop()
        largest.append((now_ns, size_s))
        while largest[0][0] < now_ns - KEPT_NS:
            largest.popleft()

    @property
    def seconds(self) -> float | None:
        """How far the venue is ahead, or None before the first reply."""
        return statistics.median(self._samples) if self._samples else None

    def is_synced(self) -> bool:
        """Return whether the clocks differ by at most `max_s`."""
        return abs(self.seconds or 0.0) <= self.max_s

    @property
    def offset(self) -> timedelta:
        return timedelta(seconds=self.seconds or 0.0)

    @property
    def margin(self) -> timedelta:
        """By how much to widen a search that compares the venue's times with ours.

        The largest skew of the last 15 minutes counts: the order was sent before the search.
        """
        size_s = self._largest[0][1] if self._largest else 0.0
        return timedelta(seconds=size_s) + TOLERANCE
