"""Surges: prices that follow a path for some seconds, at random or injected."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qts.simulators.market.ticks import Flags, Floats


@dataclass
class SimulatedSurge:
    index: int
    start: float
    """Log price at its start."""
    move: float
    steps: int
    done: int = 0


class SurgeGenerator:
    """Running surges, at most one per symbol: a later one starts from the current price."""

    def __init__(self, rng: np.random.Generator, size: int, per_hour: float) -> None:
        self._rng = rng
        self._size = size
        self._chance = per_hour / 3600
        self._running: dict[int, SimulatedSurge] = {}

    def start(self, index: int, log_price: float, percent: float, over_s: int) -> None:
        move = math.log1p(percent / 100)
        self._running[index] = SimulatedSurge(index, log_price, move, max(1, over_s))

    def start_random(self, log_prices: Floats) -> None:
        # Always the same number of draws: an injected surge must not change other symbols.
        chance, where, size, sign, span = self._rng.random(5)
        if chance >= self._chance:
            return
        index = int(where * self._size)
        percent = (3.2 + 5 * size) * (1 if sign < 0.7 else -1)
        if index not in self._running:
            self.start(index, float(log_prices[index]), percent, 5 + int(55 * span))

    def step(self, log_prices: Floats) -> Flags:
        """Move surging symbols along their path and return a flag for each symbol."""
        surging = np.zeros(self._size, np.bool_)
        for surge in list(self._running.values()):
            surge.done += 1
            log_prices[surge.index] = surge.start + surge.move * surge.done / surge.steps
            surging[surge.index] = True
            if surge.done >= surge.steps:
                del self._running[surge.index]
        return surging

    def clear(self) -> None:
        self._running.clear()
