"""Indicators of a market plane, by name (`ema(20)`, `macd(12,26,9)`), or as a compiled step.

Conventions are those of TA-Lib, on the closes of bars: an average starts with the mean of its
first values, deviations are those of the population, RSI is 0 where nothing moved, VWAP restarts
each day. Until there is a value it is NaN.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError, check_name

# Parameters and their defaults (None: has to be given), and the names of the outputs.
_KINDS: dict[str, tuple[tuple[float | None, ...], tuple[str, ...]]] = {
    "sma": ((None,), ("sma",)),
    "ema": ((None,), ("ema",)),
    "rma": ((None,), ("rma",)),
    "rsi": ((14,), ("rsi",)),
    "macd": ((12, 26, 9), ("line", "signal", "histogram")),
    "bollinger": ((20, 2), ("upper", "middle", "lower")),
    "atr": ((14,), ("atr",)),
    "vwap": ((), ("vwap",)),
    "donchian": ((20,), ("upper", "middle", "lower")),
}
_TEXT = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*")

# step(state, params, open, high, low, close, volume, at) -> value
Step = Callable[..., float]


class BarIndicator(NamedTuple):
    """Indicator over the bars of a series, as `bar_indicator` and `step_indicator` make it."""

    name: str  # identifies it in a plane and in snapshots
    kind: str
    params: tuple[float, ...]
    outputs: tuple[str, ...]
    state_size: int = 0
    compiled: Any = None  # of a step: keeps the machine code alive


def bar_indicator(text: str) -> BarIndicator:
    """Parse the name of an indicator with its parameters; raise RefusedError if it has no meaning.

    >>> bar_indicator("bollinger").name
    'bollinger(20,2)'
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise RefusedError(f"indicator {text!r} is not a name with numbers, such as ema(20)")
    kind, numbers = match[1].lower(), (match[2] or "").strip()
    check_name("indicator", kind, _KINDS)
    defaults, outputs = _KINDS[kind]
    try:
        given = tuple(float(part) for part in numbers.split(",")) if numbers else defaults
    except ValueError:
        raise RefusedError(f"indicator {text!r}: expected numbers, not {numbers!r}") from None
    params = tuple(number for number in given if number is not None)
    if len(params) != len(defaults):
        raise RefusedError(
            f"indicator {text!r} takes {len(defaults)} numbers, not {len(params)}:"
            f" such as {_named(kind, tuple(each or 20 for each in defaults))}"
        )
    return BarIndicator(_named(kind, params), kind, params, outputs)


def step_indicator(
    name: str, step: Step, *, state_size: int, params: tuple[float, ...] = ()
) -> BarIndicator:
    """Compile `step(state, params, open, high, low, close, volume, at) -> value` with numba.

    `state` is an array of `state_size` numbers per symbol and timeframe, zero at first; the
    function uses only its arguments, arithmetic and `math`, and runs without the GIL.
    """
    if not 0 <= state_size <= 100_000:
        raise RefusedError(f"state_size of {name} is {state_size}; expected 0 to 100,000")
    function = _compile(step, state_size, len(params))
    return BarIndicator(_named(name, params), "step", params, (name,), state_size, function)


def _compile(step: Step, states: int, params: int) -> Any:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        raise RefusedError(
            "an indicator of your own needs numba: pip install 'qts[compiled]'"
        ) from None
    compiled, carray = numba.njit(step), numba.carray

    def call(
        state: Any,
        given: Any,
        open_: float,
        high: float,
        low: float,
        close: float,
        volume: float,
        at: float,
    ) -> Any:
        row, numbers = carray(state, (states,)), carray(given, (params,))
        return compiled(row, numbers, open_, high, low, close, volume, at)

    number = numba.types.float64
    pointer = numba.types.CPointer(number)
    return numba.cfunc(number(pointer, pointer, *[number] * 6))(call)


def _named(kind: str, params: tuple[float, ...]) -> str:
    return f"{kind}({','.join(f'{number:g}' for number in params)})" if params else kind


Floats = npt.NDArray[np.float64]
