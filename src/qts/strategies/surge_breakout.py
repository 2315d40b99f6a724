"""Buys a price that leaves its range upwards on volume, leaves when the move gives back too much.

The range is the highest of the last `window` prices. A breakout without volume is often a false
one, so a tick's volume has to be `volume_ratio` times its own recent average.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from qts.strategies.step import StepStrategy

_RING = 4  # where the last prices begin in a state
LONGEST = 60


class BreakoutParams(msgspec.Struct, frozen=True, kw_only=True):
    window: Annotated[int, Meta(ge=2, le=LONGEST, description="prices that make the range")] = 20
    margin: Annotated[
        float, Meta(ge=0, le=0.5, description="part by which the range must be left")
    ] = 0.003
    volume_ratio: Annotated[
        float, Meta(ge=0, le=100, description="times its average that the volume must be")
    ] = 1.5
    give_back: Annotated[
        float, Meta(gt=0, lt=1, description="part below the best price at which it leaves")
    ] = 0.01


class SurgeBreakout(StepStrategy[BreakoutParams], key="surge_breakout"):
    kind = "SCALP"
    state_size = _RING + LONGEST  # ticks seen, average volume, best price while held, unused, ring

    @staticmethod
    def step(state: Any, params: Any, price: float, volume: float, _at: float, held: float) -> int:
        window, margin, ratio, give_back = params[0], params[1], params[2], params[3]
        seen, size = int(state[0]), int(window)
        highest = 0.0
        for i in range(size):
            if state[4 + i] > highest:
                highest = state[4 + i]
        usual = state[1]
        state[1] += (volume - usual) / (size if seen >= size else seen + 1.0)
        state[4 + seen % size] = price
        state[0] = seen + 1
        if held > 0:
            if price > state[2]:
                state[2] = price
            return -1 if price <= state[2] * (1.0 - give_back) else 0
        state[2] = price
        if seen < size:
            return 0
        return 1 if price > highest * (1.0 + margin) and volume >= ratio * usual else 0
