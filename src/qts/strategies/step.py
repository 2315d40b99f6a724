"""Strategies written as one numeric function, which numba compiles if it is installed.

    step(state, params, price, volume, at, position) -> 1 enter, -1 exit, 0 neither

`state` is an array of numbers per symbol, zero at first; `params` are the strategy's parameters in
their declared order. With `timeframes` it is called with the close and the volume of each bar
instead of each tick. The function uses only its arguments, arithmetic and `math`, so it decides the
same compiled and interpreted, live and in a backtest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qts.domain import Bar, IntentType, RefusedError, Side, Tick
from qts.strategies.signal import Signal
from qts.strategies.strategy import P, Strategy, View

Numbers = npt.NDArray[np.float64]
Step = Callable[[Numbers, Numbers, float, float, float, float], int]


@cache
def compile_step(step: Step) -> Step:
    """Compile a step with numba; return it unchanged if numba is not installed or switched off."""
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        return step  # as numba does, without its import
    try:
        import numba
    except ImportError:
        return step
    compiled: Step = numba.njit(
        "int64(float64[::1], float64[::1], float64, float64, float64, float64)"
    )(step)
    return compiled


class StepStrategy(Strategy[P]):
    """Base class of a strategy with a `step` and a `state_size`; all its parameters are numbers."""

    state_size: ClassVar[int]
    step: ClassVar[Any]

    def __init__(self, params: P) -> None:
        super().__init__(params)
        self.numbers = self._numbers(params)
        self._states: dict[str, Numbers] = {}
        self._step = compile_step(type(self).step)
        self._has_plain_signals = type(self).signals is StepStrategy.signals

    def set_params(self, params: P) -> None:
        super().set_params(params)
        self.numbers = self._numbers(params)

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if self.timeframes:
            return ()
        return self.on_price(tick, float(view.quantity(tick.symbol)))

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        close = Tick(bar.symbol, bar.close, bar.volume, at=bar.at)
        return self.on_price(close, float(view.quantity(bar.symbol)))

    def on_price(self, tick: Tick, position: float) -> tuple[Signal, ...]:
        """Call the step for a tick, given the position in its symbol; return its signals."""
        state = self._states.get(tick.symbol)
        if state is None:
            state = self._states[tick.symbol] = np.zeros(self.state_size)
        direction = self._step(state, self.numbers, tick.price, tick.volume, tick.at, position)
        if not direction and self._has_plain_signals:
            return ()
        return self.signals(direction, tick, position)

    def bind_states(self, states: Mapping[str, Numbers]) -> None:
        """Store the symbols' states in these arrays from now on, current values included."""
        for symbol, row in states.items():
            if symbol in self._states:
                row[:] = self._states[symbol]
            self._states[symbol] = row

    def signals(self, direction: int, tick: Tick, position: float) -> tuple[Signal, ...]:
        """Convert a step's result: entries only without a position, exits only with one."""
        if direction > 0 and not position:
            side, kind = Side.BUY, IntentType.ENTRY
        elif direction < 0 and position > 0:
            side, kind = Side.SELL, IntentType.EXIT_SIGNAL
        else:
            return ()
        at, key = tick.at, self.key
        return (Signal(symbol=tick.symbol, side=side, at=at, intent_type=kind, reason=key),)

    @classmethod
    def _numbers(cls, params: P) -> Numbers:
        values = [getattr(params, name) for name in params.__struct_fields__]
        if not all(isinstance(value, int | float) for value in values):
            raise RefusedError(f"strategy {cls.key}: every parameter of a step must be a number")
        return np.array(values, np.float64)
