"""Realised volatility of indices: how far they have moved in a short time, and fallen today."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

BUCKETS = 180  # of a window, so that a proxy with many ticks costs no more than an index


class _Bucket(NamedTuple):
    number: int
    high: float
    low: float


class IndexVolatility:
    """Realised volatility of several indices: the largest of them.

    That of one index is the larger of two figures: its range within the window, as the logarithm
    of highest by lowest value, and its fall since the previous close.
    """

    def __init__(self, window_s: float) -> None:
        self._bucket_s = window_s / BUCKETS
        self._buckets: dict[str, deque[_Bucket]] = {}
        self._realised: dict[str, float] = {}

    def update(self, name: str, value: float, change: float, at: float) -> float:
        """Take a value at a time in seconds; return the volatility over all indices."""
        buckets = self._buckets.setdefault(name, deque(maxlen=BUCKETS + 1))
        number = int(at / self._bucket_s)
        if buckets and buckets[-1].number >= number:
            last = buckets[-1]
            buckets[-1] = _Bucket(last.number, max(last.high, value), min(last.low, value))
        else:
            buckets.append(_Bucket(number, value, value))
        while buckets[0].number <= number - BUCKETS:
            buckets.popleft()
        high, low = max(each.high for each in buckets), min(each.low for each in buckets)
        fall = -math.log1p(change) if -1 < change < 0 else 0.0
        self._realised[name] = max(math.log(high / low), fall)
        return max(self._realised.values())
