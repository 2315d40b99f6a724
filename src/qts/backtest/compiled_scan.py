"""Compiled scan over a tape that returns only where Python has something to do.

    scan(i) ──▶ TIMER   the timer is due before event i
            ──▶ ACTIVE  event i is of a symbol with an open order or a watched position
            ──▶ SIGNAL  the step signals at event i, and entries are not blocked
            ──▶ APPLY   the orders of the scan must be applied before event i
            ──▶ END     of the chunk

Every other event is one step on its symbol's state: no object is created, no lock taken. Orders
that are certain to be approved are decided and filled here (`compiled_orders.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.backtest.compiled_orders import DAY_END, DUE, LOGGED, SIDE, STARTS
from qts.strategies import Numbers, Step, compile_step

TIMER, ACTIVE, SIGNAL, END, APPLY = 0, 1, 2, 3, 4

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
def compile_scan(step: Step, takes_orders: bool) -> Callable[..., int] | None:
    """Return the compiled scan around a step; None if numba is not installed.

    One that takes no orders is compiled and called without them: they would cost it a sixth of its
    speed.
    """
    try:
        import numba
    except ImportError:
        return None
    from qts.backtest import order_rules

    compiled: Callable[..., int] = numba.njit(nogil=True)(
        _make_scan(compile_step(step), order_rules, takes_orders)
    )
    return compiled


def _make_scan(step: Any, rules: Any, takes_orders: bool) -> Callable[..., int]:
    pass_timer, fill, nanoseconds = rules.pass_timer, rules.fill, rules.nanoseconds
    try_entry, try_exit = rules.try_entry, rules.try_exit

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
        orders: Any,
        due: float,
        blocked_until: float,
        enabled: bool,
        output: Any,
    ) -> int:
        states, position, active, latest = rows
        changed = False  # the account, since `blocked_until` was computed
        for i in range(start, len(at)):
            output[0] = i
            if at[i] >= due:
                if not takes_orders:
                    return TIMER
                if not pass_timer(orders, latest, at[i], i):
                    is_last = orders.counts[LOGGED] == 0 or at[i] >= orders.money[DAY_END]
                    return TIMER if is_last else APPLY
                due = orders.money[DUE]
            last = price[i]
            if not 0.0 < last < np.inf:
                continue
            s = symbol[i]
            row = latest[s]
            before = row[4]
            row[0] = last
            row[1] = volume[i]
            row[2] = bid[i] or last
            row[3] = ask[i] or last
            row[4] = at[i]
            if active[s]:
                return ACTIVE
            is_ordered = False
            if takes_orders:
                is_ordered = orders.whole[s, SIDE] != 0
                if is_ordered and nanoseconds(at[i]) >= orders.whole[s, STARTS]:
                    if orders.counts[LOGGED] + 4 >= len(orders.values):
                        return APPLY
                    fill(orders, latest, position, s, i)
                    changed, is_ordered = True, False
            direction = 0
            if enabled:
                direction = step(states[s], params, last, volume[i], at[i], position[s])
                output[1] += 1
            is_blocked = at[i] < blocked_until
            taken = False
            if direction > 0 and position[s] == 0:
                if is_blocked and not changed and not is_ordered:
                    output[2] += 1
                else:
                    if takes_orders and not is_blocked and not is_ordered:
                        taken = try_entry(orders, latest, position, s, before, i)
                    if not taken:
                        output[3] = direction
                        return SIGNAL
            elif direction < 0 and position[s] > 0:
                if takes_orders and not is_ordered:
                    taken = try_exit(orders, latest, position, s, before, i)
                if not taken:
                    output[3] = direction
                    return SIGNAL
            changed = changed or taken
        output[0] = len(at)
        return END

    return scan
