"""Tick sizes, and the daily price limits of stocks."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

COIN = 10**8
"""Coin prices and volumes are integers in units of 1/COIN, so that sums are exact."""


class TickTable:
    """`ticks[i]` applies below `edges[i]`, the last tick above all. Edges are on both ticks."""

    def __init__(self, edges: list[int], ticks: list[int]) -> None:
        self._edges, self._ticks = edges, ticks
        self._edge_array, self._tick_array = np.array(edges, np.int64), np.array(ticks, np.int64)

    def tick(self, price: int) -> int:
        return self._ticks[bisect_right(self._edges, price)]

    def tick_many(self, prices: Ints) -> Ints:
        found: Ints = self._tick_array[np.searchsorted(self._edge_array, prices, side="right")]
        return found

    def tick_below(self, price: int) -> int:
        """Return the step down from a price, which at an edge is the smaller one."""
        return self.tick(price - 1)

    def is_on(self, price: int) -> bool:
        return price > 0 and price % self.tick(price) == 0

    def round_many(self, prices: Floats) -> Ints:
        """Return the nearest price on a tick, at least one tick."""
        whole = prices.astype(np.int64)
        tick = self.tick_many(whole)
        rounded: Ints = np.maximum((whole + tick // 2) // tick * tick, tick)
        return rounded

    def floor_many(self, prices: Ints) -> Ints:
        tick = self.tick_many(prices)
        return prices // tick * tick

    def ceil_many(self, prices: Ints) -> Ints:
        tick = self.tick_many(prices)
        return -(-prices // tick) * tick

    def prices_from(self, price: int, levels: int, up: bool) -> list[int]:
        """Return up to `levels` consecutive prices from `price` on, above 0."""
        prices: list[int] = []
        while len(prices) < levels and price > 0:
            prices.append(price)
            price = price + self.tick(price) if up else price - self.tick_below(price)
        return prices


STOCK_TICKS = TickTable(  # KOSPI and KOSDAQ since 2023-01-25
    edges=[2_000, 5_000, 20_000, 50_000, 200_000, 500_000],
    ticks=[1, 5, 10, 50, 100, 500, 1_000],
)

_KRW_EDGES = (  # in won, from 0.0001; since 2025-07-31
    (0.0001, 0.00000001), (0.001, 0.000001), (0.01, 0.00001), (0.1, 0.0001), (1, 0.001),
    (10, 0.01), (100, 0.1), (5_000, 1), (10_000, 5), (50_000, 10), (100_000, 50),
    (500_000, 100), (1_000_000, 500),
)  # fmt: skip
COIN_TICKS = TickTable(
    edges=[round(edge * COIN) for edge, _ in _KRW_EDGES],
    ticks=[round(tick * COIN) for _, tick in _KRW_EDGES] + [1_000 * COIN],
)


def price_limits(base: Ints) -> tuple[Ints, Ints]:
    """Return the lower and upper limits of the day: 30 % of the base, cut to the tick."""
    tick = STOCK_TICKS.tick_many(base)
    width = base * 3 // 10 // tick * tick
    return STOCK_TICKS.ceil_many(base - width), STOCK_TICKS.floor_many(base + width)
