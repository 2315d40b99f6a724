"""Trend-following strategy on two moving averages.

It enters when the fast average crosses above the slow one and exits when it crosses back.
Both averages are exponential: a tick has the weight 2 / (length + 1).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from qts.strategies.step import StepStrategy


class MovingAverageParams(msgspec.Struct, frozen=True, kw_only=True):
    fast: Annotated[int, Meta(ge=1, le=1000, description="length of the fast average")] = 20
    slow: Annotated[int, Meta(ge=2, le=5000, description="length of the slow average")] = 100
    margin: Annotated[
        float, Meta(ge=0, le=0.1, description="fraction by which they must cross")
    ] = 0.0005


class MovingAverageSwing(StepStrategy[MovingAverageParams], key="moving_average_swing"):
    kind = "SWING"
    state_size = 4  # tick count, fast average, slow average, last side

    @staticmethod
    def step(
        state: Any, params: Any, price: float, _volume: float, _at: float, position: float
    ) -> int:
        fast, slow, margin = params[0], params[1], params[2]
        if state[0] == 0:
            state[1] = price
            state[2] = price
        else:
            state[1] += (price - state[1]) * 2.0 / (fast + 1.0)
            state[2] += (price - state[2]) * 2.0 / (slow + 1.0)
        state[0] += 1
        if state[0] < slow:
            return 0
        side = state[3]
        if state[1] > state[2] * (1.0 + margin):
            state[3] = 1
        elif state[1] < state[2] * (1.0 - margin):
            state[3] = -1
        if position > 0:
            return -1 if state[3] < 0 else 0
        return 1 if side < 0 and state[3] > 0 else 0
