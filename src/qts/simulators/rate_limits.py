"""Request windows of a key: its limits, and the worst rate that the server received."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_NS = 10**9

Shape = Literal["sliding", "fixed"]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests allowed in any second, minute and day; 0 is no limit."""

    second: Annotated[int, Meta(ge=0, description="requests in a second")] = 18
    minute: Annotated[int, Meta(ge=0, description="requests in a minute")] = 1_000
    day: Annotated[int, Meta(ge=0, description="requests in a day")] = 100_000


class Window:
    """Window of one span; admits by granted requests, and keeps the worst count of arrivals."""

    def __init__(self, span_s: float, limit: int, shape: Shape = "sliding") -> None:
        self.limit = limit
        self._span_ns = round(span_s * _NS)
        self._shape = shape
        self._granted: deque[int] = deque()
        self._arrived: deque[int] = deque()
        self.worst = 0

    def arrive(self, now_ns: int) -> None:
        """Count an arrival, granted or not, over the sliding span, which is stricter."""
        self._drop(self._arrived, now_ns - self._span_ns)
        self._arrived.append(now_ns)
        self.worst = max(self.worst, len(self._arrived))

    def has_capacity(self, now_ns: int) -> bool:
        start = now_ns - self._span_ns
        if self._shape == "fixed":
            start = now_ns // self._span_ns * self._span_ns - 1
        self._drop(self._granted, start)
        return not self.limit or len(self._granted) < self.limit

    def grant(self, now_ns: int) -> None:
        self._granted.append(now_ns)

    def left(self, now_ns: int) -> int:
        self.has_capacity(now_ns)
        return self.limit - len(self._granted)

    @staticmethod
    def _drop(log: deque[int], until_ns: int) -> None:
        while log and log[0] <= until_ns:
            log.popleft()


class Meter:
    """Windows of one key."""

    def __init__(
        self, limits: RequestLimits, shape: Shape = "sliding", second_s: float = 1.0
    ) -> None:
        """`second_s` is the span of the first window, two or ten seconds for a few limits."""
        self.windows = {
            "second": Window(second_s, limits.second, shape),
            "minute": Window(60, limits.minute),
            "day": Window(86_400, limits.day),
        }
        self.requests = 0
        self.refused = 0

    def admit(self, now_ns: int) -> bool:
        """Return whether a request is within every limit; rejected ones do not count as used."""
        self.requests += 1
        for window in self.windows.values():
            window.arrive(now_ns)
        fits = all(window.has_capacity(now_ns) for window in self.windows.values())
        if fits:
            for window in self.windows.values():
                window.grant(now_ns)
        else:
            self.refused += 1
        return fits

    def stats(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "refused": self.refused,
            "worst": {name: window.worst for name, window in self.windows.items()},
            "limits": {name: window.limit for name, window in self.windows.items()},
        }
