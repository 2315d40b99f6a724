"""Follows the trend: in when the fast average rises through the slow one, out when it falls back.

Both averages are exponential: a tick weighs 2 / (length + 1), and what came before fades.
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
        float, Meta(ge=0, le=0.1, description="part by which they must cross, against flutter")
    ] = 0.0005


class MovingAverageSwing(StepStrategy[MovingAverageParams], key="moving_average_swing"):
    kind = "SWING"
    state_size = 4  # ticks seen, fast, slow, which side it was on

    @staticmethod
    def step(state: Any, params: Any, price: float, _volume: float, _at: float, held: float) -> int:
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
        if held > 0:
            return -1 if state[3] < 0 else 0
        return 1 if side < 0 and state[3] > 0 else 0
