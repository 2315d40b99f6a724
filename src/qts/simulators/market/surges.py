"""Surges: prices that are led along a planned path for some seconds, by chance or by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qts.simulators.market.ticks import Flags, Floats


@dataclass
class SimulatedSurge:
    index: int
    start: float
    """The log price it left from."""
    move: float
    steps: int
    done: int = 0


class SurgeGenerator:
    """At most one a symbol: a later one takes over from where the price is."""

    def __init__(self, rng: np.random.Generator, size: int, per_hour: float) -> None:
        self._rng = rng
        self._size = size
        self._chance = per_hour / 3600
        self._running: dict[int, SimulatedSurge] = {}

    def plant(self, index: int, log_price: float, percent: float, over_s: int) -> None:
        move = math.log1p(percent / 100)
        self._running[index] = SimulatedSurge(index, log_price, move, max(1, over_s))

    def by_chance(self, log_prices: Floats) -> None:
        # Always the same number of draws: what is planted by hand must not move other symbols.
        chance, where, size, sign, span = self._rng.random(5)
        if chance >= self._chance:
            return
        index = int(where * self._size)
        percent = (3.2 + 5 * size) * (1 if sign < 0.7 else -1)
        if index not in self._running:
            self.plant(index, float(log_prices[index]), percent, 5 + int(55 * span))

    def lead(self, log_prices: Floats) -> Flags:
        """Put led symbols on their path; answers which ones."""
        led = np.zeros(self._size, np.bool_)
        for surge in list(self._running.values()):
            surge.done += 1
            log_prices[surge.index] = surge.start + surge.move * surge.done / surge.steps
            led[surge.index] = True
            if surge.done >= surge.steps:
                del self._running[surge.index]
        return led

    def clear(self) -> None:
        self._running.clear()
