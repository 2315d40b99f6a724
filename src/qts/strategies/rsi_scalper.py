"""Buys what fell too fast and begins to turn, leaves when it has risen too fast.

The relative strength index compares the average rise of the last ticks with the average fall: 0
when it only fell, 100 when it only rose. Below `low` a symbol counts as oversold. The entry waits
until it climbs back above `low`: what falls may go on falling.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from qts.strategies.step import StepStrategy


class RsiParams(msgspec.Struct, frozen=True, kw_only=True):
    length: Annotated[int, Meta(ge=2, le=500, description="ticks the averages reach back")] = 14
    low: Annotated[float, Meta(gt=0, lt=50, description="below it is oversold")] = 30.0
    high: Annotated[float, Meta(gt=50, lt=100, description="above it is overbought")] = 70.0


class RsiScalper(StepStrategy[RsiParams], key="rsi_scalper"):
    kind = "SCALP"
    state_size = 5  # ticks seen, last price, average rise, average fall, the index before

    @staticmethod
    def step(state: Any, params: Any, price: float, _volume: float, _at: float, held: float) -> int:
        length, low, high = params[0], params[1], params[2]
        seen = state[0]
        if seen > 0:
            change = price - state[1]
            rise = change if change > 0 else 0.0
            fall = -change if change < 0 else 0.0
            weight = 1.0 / min(seen, length)  # a plain average until it is full
            state[2] += (rise - state[2]) * weight
            state[3] += (fall - state[3]) * weight
        state[0] = seen + 1
        state[1] = price
        if seen < length:
            return 0
        both = state[2] + state[3]
        rsi = 100.0 * state[2] / both if both > 0 else 50.0
        before = state[4]
        state[4] = rsi
        if held > 0:
            return -1 if rsi >= high else 0
        return 1 if 0 < before < low <= rsi else 0
