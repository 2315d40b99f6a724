"""Mean-reversion strategy on the relative strength index (RSI).

The RSI compares the average rise of the last ticks with the average fall: 0 if the price only fell,
100 if it only rose. Below `low` a symbol is oversold; the strategy enters when the RSI climbs back
above `low` and exits when it reaches `high`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from qts.strategies.step import StepStrategy


class RsiParams(msgspec.Struct, frozen=True, kw_only=True):
    length: Annotated[int, Meta(ge=2, le=500, description="ticks in the averages")] = 14
    low: Annotated[float, Meta(gt=0, lt=50, description="oversold below this RSI")] = 30.0
    high: Annotated[float, Meta(gt=50, lt=100, description="overbought above this RSI")] = 70.0


class RsiScalper(StepStrategy[RsiParams], key="rsi_scalper"):
    kind = "SCALP"
    state_size = 5  # tick count, last price, average rise, average fall, last RSI

    @staticmethod
    def step(
        state: Any, params: Any, price: float, _volume: float, _at: float, position: float
    ) -> int:
        length, low, high = params[0], params[1], params[2]
        count = state[0]
        if count > 0:
            change = price - state[1]
            rise = change if change > 0 else 0.0
            fall = -change if change < 0 else 0.0
            weight = 1.0 / min(count, length)  # a plain average for the first `length` ticks
            state[2] += (rise - state[2]) * weight
            state[3] += (fall - state[3]) * weight
        state[0] = count + 1
        state[1] = price
        if count < length:
            return 0
        total = state[2] + state[3]
        rsi = 100.0 * state[2] / total if total > 0 else 50.0
        last_rsi = state[4]
        state[4] = rsi
        if position > 0:
            return -1 if rsi >= high else 0
        return 1 if 0 < last_rsi < low <= rsi else 0
