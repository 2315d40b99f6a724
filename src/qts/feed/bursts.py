"""Surges of a price or volume, and the bursts: the symbols polled once a second.

A change is measured against two anchors, prices at least `window_s` apart: the last two polls in a
scan, prices up to a minute old in a stream of ticks. One anchor is not enough: a poll in the middle
of a jump would split it into two moves, each below the threshold. KIS volume accumulates over the
day, so the volume's rate since the anchor is compared with the symbol's recent rate.

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
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

PRICE_CHANGE = 0.03
VOLUME_RATIO = 2.0
WINDOW_S = 25.0
MIN_ANCHORS = 3  # before a symbol's own rate is meaningful
_NEWEST_WEIGHT = 0.3  # weight of the newest rate


class Surge(NamedTuple):
    """Symbol that qualifies for a burst."""

    symbol: str
    change: float  # of the price, signed
    volume_ratio: float  # of the volume's rate, 0 when unknown
    volume: float = 0.0  # traded since the price it is compared with
    price: float = 0.0


class PriceCache:
    """Latest values of each symbol in columns: 60 bytes per symbol, plus its name.

    Times are seconds on any monotonic clock.
    """

    def __init__(self, ttl_s: float = 600.0) -> None:
        self.ttl_s = ttl_s
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._columns = [array("d") for _ in range(7)]
        self._anchors = array("i")

    def __len__(self) -> int:
        return len(self._rows)

    def price(self, symbol: str, at: float) -> float | None:
        """Return the last price unless it is older than the TTL."""
        row = self._rows.get(symbol)
        if row is None or at - self._columns[1][row] > self.ttl_s:
            return None
        return self._columns[0][row]

    def clean(self, at: float) -> int:
        """Delete expired symbols; return how many."""
        updated_at = self._columns[1]
        old = [symbol for symbol, row in self._rows.items() if at - updated_at[row] > self.ttl_s]
        for symbol in old:
            self._free.append(self._rows.pop(symbol))
        return len(old)

    def row(self, symbol: str, at: float) -> tuple[int, bool]:
        """Return the row of the symbol, and whether its values are still valid."""
        row = self._rows.get(symbol)
        if row is not None:
            return row, at - self._columns[1][row] <= self.ttl_s
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._anchors)
            self._anchors.append(0)
            for column in self._columns:
                column.append(0.0)
        self._rows[symbol] = row
        return row, False

    @property
    def columns(self) -> tuple[list[array[float]], array[int]]:
        """Price, its time, the anchor's price, volume and time, own rate, the earlier anchor's
        price; and the number of anchors."""
        return self._columns, self._anchors


class SurgeDetector:
    """Comparison of each observation with the cache, which it then updates."""

    def __init__(
        self,
        cache: PriceCache,
        price_change: float = PRICE_CHANGE,
        volume_ratio: float = VOLUME_RATIO,
        window_s: float = WINDOW_S,
    ) -> None:
        self._cache = cache
        self._price_change = price_change
        self._volume_ratio = volume_ratio
        self._window_s = window_s

    def observe(self, symbol: str, price: float, volume: float, at: float) -> Surge | None:
        if not (price > 0 and math.isfinite(price)):
            return None  # halted and untraded symbols are quoted at zero
        row, known = self._cache.row(symbol, at)
        columns, anchors = self._cache.columns
        prices, updated_at, anchor_price, anchor_volume, anchor_at, rates, earlier = columns
        prices[row], updated_at[row] = price, at
        if not known or volume < anchor_volume[row]:  # a new symbol, or a new day
            anchor_price[row], anchor_volume[row], anchor_at[row] = price, volume, at
            anchors[row], rates[row], earlier[row] = 0, 0.0, price
            return None
        near, far = anchor_price[row], earlier[row]
        change = max((price - near) / near, (price - far) / far, key=abs)  # 103 after 100 is 3 %
        span = at - anchor_at[row]
        ratio = 0.0
        traded = 0.0
        if span >= self._window_s:
            traded = volume - anchor_volume[row]
            ratio = self._update_rate(row, volume, span)
            earlier[row] = near
            anchor_price[row], anchor_volume[row], anchor_at[row] = price, volume, at
        if abs(change) > self._price_change or ratio > self._volume_ratio:
            return Surge(symbol, change, ratio, traded, price)
        return None

    def _update_rate(self, row: int, volume: float, span: float) -> float:
        """Return the rate since the anchor relative to the symbol's own; update the latter."""
        columns, anchors = self._cache.columns
        rates, rate = columns[5], (volume - columns[3][row]) / span
        ratio = rate / rates[row] if anchors[row] >= MIN_ANCHORS and rates[row] > 0 else 0.0
        weight = _NEWEST_WEIGHT if anchors[row] else 1.0
        rates[row] += weight * (rate - rates[row])
        anchors[row] = min(anchors[row] + 1, 1 << 30)
        return ratio


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
