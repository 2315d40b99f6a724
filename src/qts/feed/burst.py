"""Bursts: the symbols polled once a second, and the budget of requests for them.

    surge ── slot free ──────────────────────▶ active ── 5 minutes, or quiet for one ──▶ ended
       └──── full: larger than the smallest ──▶ active     the smallest is displaced ──▶ ended

At most ten symbols, the largest movers, for at most five minutes. Pure state, without I/O.

The budget receives its share of the day evenly, and can save up enough for a full set of bursts.
Without it a morning of surges would use the day's requests, and the scan would slow down for the
rest of it. A burst starts only if the budget covers it to its end, so that no symbol is dropped
halfway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qts.feed.surge import Surge

MAX_BURSTS = 10
MAX_BURST_S = 300.0
QUIET_S = 60.0
QUIET_CHANGE = 0.01


@dataclass(slots=True)
class Burst:
    symbol: str
    started_at: float
    size: float  # largest move so far
    quiet_price: float = 0.0  # the price has stayed near this
    quiet_since: float = 0.0

    def on_price(self, price: float, at: float) -> None:
        if not self.quiet_price or abs(price / self.quiet_price - 1) > QUIET_CHANGE:
            self.quiet_price, self.quiet_since = price, at


class BurstManager:
    """The active bursts."""

    def __init__(self, slots: int = MAX_BURSTS, max_burst_s: float = MAX_BURST_S) -> None:
        self._slots = slots
        self._max_burst_s = max_burst_s
        self._active: dict[str, Burst] = {}

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._active

    @property
    def symbols(self) -> list[str]:
        return list(self._active)

    def offer(self, surge: Surge, at: float) -> bool:
        """Start a burst in a free slot or in place of a smaller one; return whether it started."""
        size = abs(surge.change)
        if (burst := self._active.get(surge.symbol)) is not None:
            burst.size = max(burst.size, size)
            return False
        if len(self._active) >= self._slots:
            smallest = min(self._active.values(), key=lambda burst: burst.size, default=None)
            if smallest is None or smallest.size >= size:
                return False
            del self._active[smallest.symbol]
        self._active[surge.symbol] = Burst(surge.symbol, at, size, quiet_since=at)
        return True

    def on_price(self, symbol: str, price: float, at: float) -> None:
        """Record a price of a symbol, in a burst or not."""
        if (burst := self._active.get(symbol)) is not None and price > 0:
            burst.on_price(price, at)

    def end(self, at: float) -> list[str]:
        """Remove and return the bursts that are over."""
        ended = [
            burst.symbol
            for burst in self._active.values()
            if at - burst.started_at >= self._max_burst_s or at - burst.quiet_since >= QUIET_S
        ]
        for symbol in ended:
            del self._active[symbol]
        return ended

    def remaining_s(self, at: float) -> list[float]:
        """Return how much longer each burst may last."""
        return [burst.started_at + self._max_burst_s - at for burst in self._active.values()]

    def resize(self, slots: int) -> None:
        """Change the number of slots; the smallest movers are dropped."""
        self._slots = slots
        ordered = sorted(self._active.values(), key=lambda burst: -burst.size)
        for burst in ordered[slots:]:
            del self._active[burst.symbol]


class BurstBudget:
    """Balance of requests; times are seconds on a monotonic clock."""

    def __init__(self, bursts: int, burst_s: float, per_call: int, at: float) -> None:
        self._burst_s = burst_s
        self._per_call = per_call
        self._max_balance = self._balance = math.ceil(bursts / per_call) * burst_s
        self._per_s = 0.0
        self._at = at

    def set_income(self, per_s: float, at: float) -> None:
        """Set the requests per second that the budget receives from now on."""
        self._collect(at)
        self._per_s = per_s

    def spend(self) -> None:
        self._balance -= 1

    def slots(self, remaining_s: Sequence[float], at: float) -> int:
        """Return how many bursts are affordable, given the remaining time of the active ones."""
        self._collect(at)
        if self._balance <= 0:
            return 0
        # Symbols of one request share its cost, for as long as the longest of them.
        committed = sum(sorted(remaining_s, reverse=True)[:: self._per_call])
        requests = math.ceil(len(remaining_s) / self._per_call)
        affordable = math.floor((self._balance - committed) / self._burst_s)
        return (requests + max(0, affordable)) * self._per_call

    def _collect(self, at: float) -> None:
        self._balance = min(self._max_balance, self._balance + (at - self._at) * self._per_s)
        self._at = at
