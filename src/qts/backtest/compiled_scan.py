"""Compiled scan over a tape that returns only where Python has something to do.

    scan(i) ──▶ TIMER   the timer is due before event i
            ──▶ ACTIVE  event i is of a symbol with an open order or a watched position
            ──▶ SIGNAL  the step signals at event i, and entries are not blocked
            ──▶ END     of the chunk

Every other event is one step on its symbol's state: no object is created, no lock taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.strategies import Numbers, Step, compile_step

TIMER, ACTIVE, SIGNAL, END = 0, 1, 2, 3

# Indices into the output of a scan, which is valid even if a step raises:
INDEX, STEPS, BLOCKED, DIRECTION = 0, 1, 2, 3


class SymbolRows(NamedTuple):
    """Arrays with one entry or row per symbol."""

    states: npt.NDArray[np.float64]
    position: Numbers
    active: npt.NDArray[np.bool_]
    latest: npt.NDArray[np.float64]  # price, volume, bid, ask, time

    @classmethod
    def of(cls, symbols: int, state_size: int) -> SymbolRows:
        return cls(
            np.zeros((symbols, state_size)),
            np.zeros(symbols),
            np.zeros(symbols, np.bool_),
            np.zeros((symbols, 5)),
        )

    def grown(self, symbols: int) -> SymbolRows:
        """Return larger arrays that begin with the current rows."""
        larger = SymbolRows.of(symbols, self.states.shape[1])
        for new, old in zip(larger, self, strict=True):
            new[: len(old)] = old
        return larger


@cache
def compile_scan(step: Step) -> Callable[..., int] | None:
    """Return the compiled scan around a step; None if numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    compiled: Callable[..., int] = numba.njit(nogil=True)(_make_scan(compile_step(step)))
    return compiled


def _make_scan(step: Any) -> Callable[..., int]:
    def scan(
        start: int,
        symbol: Any,
        price: Any,
        volume: Any,
        bid: Any,
        ask: Any,
        at: Any,
        rows: Any,
        params: Any,
        due: float,
        blocked_until: float,
        enabled: bool,
        output: Any,
    ) -> int:
        states, position, active, latest = rows
        for i in range(start, len(at)):
            output[0] = i
            if at[i] >= due:
                return 0
            last = price[i]
            if not 0.0 < last < np.inf:
                continue
            s = symbol[i]
            row = latest[s]
            row[0] = last
            row[1] = volume[i]
            row[2] = bid[i] or last
            row[3] = ask[i] or last
            row[4] = at[i]
            if active[s]:
                return 1
            if not enabled:
                continue
            direction = step(states[s], params, last, volume[i], at[i], position[s])
            output[1] += 1
            if direction > 0 and position[s] == 0:
                if at[i] < blocked_until:
                    output[2] += 1
                else:
                    output[3] = direction
                    return 2
            elif direction < 0 and position[s] > 0:
                output[3] = direction
                return 2
        output[0] = len(at)
        return 3

    return scan
