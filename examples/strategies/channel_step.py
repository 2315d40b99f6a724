"""A strategy as one numeric function: compiled by numba, millions of events a second.

It enters when the price falls below a channel of two standard deviations, exits at its middle.
Run it:   python examples/strategies/channel_step.py
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from qts import StepStrategy, Tick, run_backtest
from qts.backtest import Tape


class ChannelParams(msgspec.Struct, frozen=True, kw_only=True):
    """The step receives these numbers as an array, in this order."""

    length: Annotated[int, msgspec.Meta(ge=2, le=10_000, description="ticks in the average")] = 60
    width: Annotated[float, msgspec.Meta(gt=0, le=10, description="standard deviations")] = 2.0


class Channel(StepStrategy[ChannelParams], key="channel"):
    kind = "SCALP"
    state_size = 3  # tick count, mean, variance

    @staticmethod
    def step(
        state: Any, params: Any, price: float, _volume: float, _at: float, position: float
    ) -> int:
        weight = 2.0 / (params[0] + 1.0)
        deviation = price - state[1] if state[0] > 0 else 0.0
        if state[0] == 0:
            state[1] = price
        state[1] += weight * deviation
        state[2] = (1.0 - weight) * (state[2] + weight * deviation * deviation)
        state[0] += 1
        if state[0] < params[0]:
            return 0
        if position > 0:
            return -1 if price >= state[1] else 0
        return 1 if deviation < -params[1] * math.sqrt(state[2]) else 0


def walk() -> Iterator[Tick]:
    """Yield 5,000 seconds of ten mean-reverting symbols, one price a second."""
    chance = random.Random(3)  # noqa: S311 - a walk, not a secret
    logs = [0.0] * 10
    for second in range(5_000):
        for n in range(10):
            logs[n] = 0.998 * logs[n] + chance.gauss(0, 0.001)
            price = round(20_000 * math.exp(logs[n]) / 10) * 10.0
            yield Tick(f"{n + 1:06}", price, 100.0, 0, 0, 1_794_787_200.0 + second)


if __name__ == "__main__":
    tape = Tape.of_ticks(walk)
    fast = run_backtest(Channel.from_params(), tape)
    slow = run_backtest(Channel.from_params(), tape, way="generic")
    print(f"{len(fast.trades)} trades {fast.way}, {len(slow.trades)} {slow.way}")
    print("the same decisions" if fast.digest == slow.digest else "they differ")
