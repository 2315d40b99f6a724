"""Notices what moves: the last price of each symbol, and when it or its volume jumps.

A change is measured against two anchors, prices at least `window_s` apart: the last two polls in
a scan, prices up to a minute old in a stream of ticks. One would not do: a poll in the middle of
a jump would split it into two moves, each too small to be noticed. KIS volume runs up over the
day, so the volume's rate since the anchor is compared with the symbol's own recent rate. This
only points at symbols to watch more closely; it judges nothing.
"""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

PRICE_CHANGE = 0.03
VOLUME_RATIO = 2.0
WINDOW_S = 25.0
WARM_UP = 3  # anchors before a symbol's own rate means anything
_FRESH = 0.3  # weight of the newest rate


class Surge(NamedTuple):
    """A symbol that qualifies for a burst."""

    symbol: str
    change: float  # of the price, signed
    volume_ratio: float  # of the volume's rate, 0 when unknown


class PriceCache:
    """The latest of each symbol in columns: 60 bytes a symbol and its name.

    Moments are seconds on any clock that never goes back.
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
        """The last price, unless it is older than the cache keeps."""
        row = self._rows.get(symbol)
        if row is None or at - self._columns[1][row] > self.ttl_s:
            return None
        return self._columns[0][row]

    def clean(self, at: float) -> int:
        """Forget what is too old; answers how many."""
        seen = self._columns[1]
        old = [symbol for symbol, row in self._rows.items() if at - seen[row] > self.ttl_s]
        for symbol in old:
            self._free.append(self._rows.pop(symbol))
        return len(old)

    def row(self, symbol: str, at: float) -> tuple[int, bool]:
        """Where the symbol's columns are, and whether what they hold is still good."""
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
        """price, seen at, anchor's price, volume and moment, own rate, the earlier anchor's price;
        and how many anchors there were."""
        return self._columns, self._anchors


class SurgeDetector:
    """Compares each observation with the cache, and puts it there."""

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
        prices, seen, anchor_price, anchor_volume, anchor_at, rates, earlier = columns
        prices[row], seen[row] = price, at
        if not known or volume < anchor_volume[row]:  # a new symbol, or a new day
            anchor_price[row], anchor_volume[row], anchor_at[row] = price, volume, at
            anchors[row], rates[row], earlier[row] = 0, 0.0, price
            return None
        near, far = anchor_price[row], earlier[row]
        change = max((price - near) / near, (price - far) / far, key=abs)  # 103 after 100 is 3 %
        span = at - anchor_at[row]
        ratio = 0.0
        if span >= self._window_s:
            ratio = self._turn_rate(row, volume, span)
            earlier[row] = near
            anchor_price[row], anchor_volume[row], anchor_at[row] = price, volume, at
        if abs(change) > self._price_change or ratio > self._volume_ratio:
            return Surge(symbol, change, ratio)
        return None

    def _turn_rate(self, row: int, volume: float, span: float) -> float:
        """The rate since the anchor, against the symbol's own, which then learns it."""
        columns, anchors = self._cache.columns
        rates, rate = columns[5], (volume - columns[3][row]) / span
        ratio = rate / rates[row] if anchors[row] >= WARM_UP and rates[row] > 0 else 0.0
        weight = _FRESH if anchors[row] else 1.0
        rates[row] += weight * (rate - rates[row])
        anchors[row] = min(anchors[row] + 1, 1 << 30)
        return ratio
