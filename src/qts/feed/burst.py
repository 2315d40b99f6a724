"""Which symbols are polled once a second: at most ten, the largest movers, five minutes at most.

    a surge ── slot free ───────────────▶ active ── 5 minutes, or a calm minute ──▶ over
       └───── full: beats the smallest ──▶ active        the smallest makes room ──▶ over

Pure state: told of surges, prices and the time; asks nobody.

What bursts may cost: their share of the day comes in evenly, and a full set can be saved up.

Without it a morning of surges would eat the day's requests, and the scan that was promised would
slow down for the rest of it. A burst begins only when it can be paid to its end, so a symbol is
not dropped halfway because others have used up the share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qts.feed.surge import Surge

SLOTS = 10
LONGEST_S = 300.0
CALM_S = 60.0
CALM_CHANGE = 0.01


@dataclass(slots=True)
class Burst:
    symbol: str
    began_at: float
    size: float  # the largest move seen
    calm_price: float = 0.0  # the price has stayed near this one
    calm_since: float = 0.0

    def moved(self, price: float, at: float) -> None:
        if not self.calm_price or abs(price / self.calm_price - 1) > CALM_CHANGE:
            self.calm_price, self.calm_since = price, at


class BurstManager:
    """The active bursts."""

    def __init__(self, slots: int = SLOTS, longest_s: float = LONGEST_S) -> None:
        self._slots = slots
        self._longest_s = longest_s
        self._active: dict[str, Burst] = {}

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._active

    @property
    def symbols(self) -> list[str]:
        return list(self._active)

    def offer(self, surge: Surge, at: float) -> bool:
        """Take the symbol in, if a slot is free or it moves more than the smallest; True: begun."""
        size = abs(surge.change)
        if (known := self._active.get(surge.symbol)) is not None:
            known.size = max(known.size, size)
            return False
        if len(self._active) >= self._slots:
            smallest = min(self._active.values(), key=lambda burst: burst.size, default=None)
            if smallest is None or smallest.size >= size:
                return False
            del self._active[smallest.symbol]
        self._active[surge.symbol] = Burst(surge.symbol, at, size, calm_since=at)
        return True

    def moved(self, symbol: str, price: float, at: float) -> None:
        """A price of a symbol, in a burst or not."""
        if (burst := self._active.get(symbol)) is not None and price > 0:
            burst.moved(price, at)

    def end(self, at: float) -> list[str]:
        """Let go of the bursts that are over, and name them."""
        over = [
            burst.symbol
            for burst in self._active.values()
            if at - burst.began_at >= self._longest_s or at - burst.calm_since >= CALM_S
        ]
        for symbol in over:
            del self._active[symbol]
        return over

    def left_s(self, at: float) -> list[float]:
        """How much longer each may last."""
        return [burst.began_at + self._longest_s - at for burst in self._active.values()]

    def resize(self, slots: int) -> None:
        """Allow more or fewer; the smallest movers make room."""
        self._slots = slots
        ordered = sorted(self._active.values(), key=lambda burst: -burst.size)
        for burst in ordered[slots:]:
            del self._active[burst.symbol]


class BurstBudget:
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
