"""A strategy as one function over numbers: numba compiles it where it is installed.

    step(state, params, price, volume, at, held) -> 1 wants to buy, -1 wants to leave, 0 nothing

`state` is the symbol's own row of numbers, zero at first; `params` are the strategy's parameters in
the order of their declaration. The function uses nothing but these, arithmetic and `math`, so that
it gives the same answers compiled and not, tick by tick in a lane and over days in a backtest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qts.domain import IntentType, RefusedError, Side, Tick
from qts.strategies.strategy import P, Signal, Strategy, View

Numbers = npt.NDArray[np.float64]
Step = Callable[[Numbers, Numbers, float, float, float, float], int]


@cache
def compile_step(step: Step) -> Step:
    """By numba; without it the function as it is, which is the same and slower."""
    try:
        import numba
    except ImportError:
        return step
    made: Step = numba.njit(
        "int64(float64[::1], float64[::1], float64, float64, float64, float64)"
    )(step)
    return made


class StepStrategy(Strategy[P]):
    """Derive from it, give `step` and `state_size`; its parameters are all numbers."""

    state_size: ClassVar[int]
    step: ClassVar[Any]

    def __init__(self, params: P) -> None:
        super().__init__(params)
        self.numbers = self._numbers(params)
        self._states: dict[str, Numbers] = {}
        self._step = compile_step(type(self).step)

    def set_params(self, params: P) -> None:
        super().set_params(params)
        self.numbers = self._numbers(params)

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        return self.on_price(tick, float(view.quantity(tick.symbol)))

    def on_price(self, tick: Tick, held: float) -> tuple[Signal, ...]:
        """All of a view that a step looks at is how much of the symbol is held."""
        state = self._states.get(tick.symbol)
        if state is None:
            state = self._states[tick.symbol] = np.zeros(self.state_size)
        wish = self._step(state, self.numbers, tick.price, tick.volume, tick.at, held)
        return self.signals(wish, tick, held)

    def keep_states(self, states: Mapping[str, Numbers]) -> None:
        """From now on a symbol's state is this row; whoever owns the rows may step over them."""
        for symbol, row in states.items():
            if symbol in self._states:
                row[:] = self._states[symbol]
            self._states[symbol] = row

    def signals(self, wish: int, tick: Tick, held: float) -> tuple[Signal, ...]:
        """What a wish comes to: entries while nothing is held, exits while something is."""
        if wish > 0 and not held:
            return (Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, reason=self.key),)
        if wish < 0 and held > 0:
            leave = IntentType.EXIT_SIGNAL
            return (
                Signal(
                    symbol=tick.symbol,
                    side=Side.SELL,
                    at=tick.at,
                    intent_type=leave,
                    reason=self.key,
                ),
            )
        return ()

    @classmethod
    def _numbers(cls, params: P) -> Numbers:
        values = [getattr(params, name) for name in params.__struct_fields__]
        if not all(isinstance(value, int | float) for value in values):
            raise RefusedError(f"strategy {cls.key}: every parameter of a step must be a number")
        return np.array(values, np.float64)
