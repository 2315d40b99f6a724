"""What bursts may cost: their share of the day comes in evenly, and a full set can be saved up.

Without it a morning of surges would eat the day's requests, and the scan that was promised would
slow down for the rest of it. A burst begins only when it can be paid to its end, so a symbol is
not dropped halfway because others have used up the share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


class Purse:
    """Counts requests; moments are seconds on a clock that never goes back."""

    def __init__(self, bursts: int, burst_s: float, per_call: int, at: float) -> None:
        self._burst_s = burst_s
        self._per_call = per_call
        self._most = self._held = math.ceil(bursts / per_call) * burst_s
        self._per_s = 0.0
        self._at = at

    def fill(self, per_s: float, at: float) -> None:
        """From now on so many requests come in a second."""
        self._collect(at)
        self._per_s = per_s

    def spend(self) -> None:
        self._held -= 1

    def slots(self, left_s: Sequence[float], at: float) -> int:
        """How many bursts there may be, when those under way last so much longer each."""
        self._collect(at)
        if self._held <= 0:
            return 0
        # Symbols that share a request share its cost: the one that stays longest pays.
        owed = sum(sorted(left_s, reverse=True)[:: self._per_call])
        requests = math.ceil(len(left_s) / self._per_call)
        more = math.floor((self._held - owed) / self._burst_s)
        return (requests + max(0, more)) * self._per_call

    def _collect(self, at: float) -> None:
        self._held = min(self._most, self._held + (at - self._at) * self._per_s)
        self._at = at
