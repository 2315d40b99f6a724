"""The compiled walk over a tape: stops only where Python has something to do.

    scan(i) ──▶ BEAT     the next beat is due before event i
            ──▶ WATCHED  event i is of a symbol that is held or ordered
            ──▶ WISH     the step wants to trade at event i, and may
            ──▶ END      of the chunk

Everything between is one step on a symbol's own row of state: no object is made, no lock taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.strategies import Numbers, Step, compile_step

BEAT, WATCHED, WISH, END = 0, 1, 2, 3

# Of the notes that a scan leaves, for the case that a step raises:
PLACE, STEPPED, REFUSED, WISHED = 0, 1, 2, 3


class Rows(NamedTuple):
    """One entry or row for each symbol."""

    states: npt.NDArray[np.float64]
    held: Numbers
    watched: npt.NDArray[np.bool_]
    latest: npt.NDArray[np.float64]  # price, volume, bid, ask, time

    @classmethod
    def of(cls, symbols: int, state_size: int) -> Rows:
        return cls(
            np.zeros((symbols, state_size)),
            np.zeros(symbols),
            np.zeros(symbols, np.bool_),
            np.zeros((symbols, 5)),
        )

    def grown(self, symbols: int) -> Rows:
        made = Rows.of(symbols, self.states.shape[1])
        for new, old in zip(made, self, strict=True):
            new[: len(old)] = old
        return made


@cache
def compile_scan(step: Step) -> Callable[..., int] | None:
    """The walk with this step inside; None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    walk = numba.njit(nogil=True)(_walk(compile_step(step)))
    made: Callable[..., int] = walk
    return made


def _walk(step: Any) -> Callable[..., int]:
    def walk(
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
        closed_until: float,
        alive: bool,
        notes: Any,
    ) -> int:
        states, held, watched, latest = rows
        for i in range(start, len(at)):
            notes[0] = i
            if at[i] >= due:
                return 0
            cost = price[i]
            if not 0.0 < cost < np.inf:
                continue
            s = symbol[i]
            row = latest[s]
            row[0] = cost
            row[1] = volume[i]
            row[2] = bid[i] or cost
            row[3] = ask[i] or cost
            row[4] = at[i]
            if watched[s]:
                return 1
            if not alive:
                continue
            wish = step(states[s], params, cost, volume[i], at[i], held[s])
            notes[1] += 1
            if wish > 0 and held[s] == 0:
                if at[i] < closed_until:
                    notes[2] += 1
                else:
                    notes[3] = wish
                    return 2
            elif wish < 0 and held[s] > 0:
                notes[3] = wish
                return 2
        notes[0] = len(at)
        return 3

    return walk
