"""Breakout strategy on price and volume.

It enters above the recent high on volume and exits when the price gives back too much.
The recent high is the highest of the last `window` prices. A breakout without volume is often a
false one, so the tick's volume must be at least `volume_ratio` times the recent average.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from qts.strategies.step import StepStrategy

_RING = 4  # index of the first recent price in a state
MAX_WINDOW = 60


class BreakoutParams(msgspec.Struct, frozen=True, kw_only=True):
    window: Annotated[int, Meta(ge=2, le=MAX_WINDOW, description="prices in the range")] = 20
    margin: Annotated[
        float, Meta(ge=0, le=0.5, description="fraction above the high that is a breakout")
    ] = 0.003
    volume_ratio: Annotated[
        float, Meta(ge=0, le=100, description="minimum volume, as a multiple of its average")
    ] = 1.5
    give_back: Annotated[
        float, Meta(gt=0, lt=1, description="fraction below the best price that triggers the exit")
    ] = 0.01


class SurgeBreakout(StepStrategy[BreakoutParams], key="surge_breakout"):
    kind = "SCALP"
    state_size = _RING + MAX_WINDOW  # tick count, average volume, best price, unused, recent prices

    @staticmethod
    def step(
        state: Any, params: Any, price: float, volume: float, _at: float, position: float
    ) -> int:
        window, margin, ratio, give_back = params[0], params[1], params[2], params[3]
        count, size = int(state[0]), int(window)
        highest = 0.0
        for i in range(size):
            if state[4 + i] > highest:
                highest = state[4 + i]
        average = state[1]
        state[1] += (volume - average) / (size if count >= size else count + 1.0)
        state[4 + count % size] = price
        state[0] = count + 1
        if position > 0:
            if price > state[2]:
                state[2] = price
            return -1 if price <= state[2] * (1.0 - give_back) else 0
        state[2] = price
        if count < size:
            return 0
        return 1 if price > highest * (1.0 + margin) and volume >= ratio * average else 0
