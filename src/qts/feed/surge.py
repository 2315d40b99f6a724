"""Surge detection: the last price of each symbol, and jumps of its price or volume rate.

A change is measured against two anchors, prices at least `window_s` apart: the last two polls in a
scan, prices up to a minute old in a stream of ticks. One anchor is not enough: a poll in the middle
of a jump would split it into two moves, each below the threshold. KIS volume accumulates over the
day, so the volume's rate since the anchor is compared with the symbol's recent rate.
"""

from __future__ import annotations

import math
from array import array
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
