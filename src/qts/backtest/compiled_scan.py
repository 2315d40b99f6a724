"""Compiled scan over a tape that returns only where Python has something to do, and its orders.

    scan(i) ──▶ TIMER   the timer is due before event i
            ──▶ ACTIVE  event i is of a symbol with an open order or a watched position
            ──▶ SIGNAL  the step signals at event i, and entries are not blocked
            ──▶ APPLY   the orders of the scan must be applied before event i
            ──▶ END     of the chunk

Every other event is one step on its symbol's state: no object is created, no lock taken. Orders
that are certain to be approved are decided and filled here (`compiled_orders.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts.backtest import compiled_orders
from qts.backtest.compiled_orders import (
    AVERAGE,
    CASH,
    DAY_END,
    DUE,
    ENTERS,
    HELD,
    LOGGED,
    NEXT_POINT,
    OPEN,
    ORDERS,
    QUANTITY,
    ROW,
    SIDE,
    SLACK,
    STARTS,
    WAITING,
    CoreLog,
    OrderArrays,
    is_proven,
)
from qts.backtest.engine import BacktestEngine
from qts.backtest.order_log import LogSource, PlainTerms
from qts.backtest.tape import Chunk
from qts.domain import Instrument, Side
from qts.strategies import Numbers, Step, compile_step

TIMER, ACTIVE, SIGNAL, END, APPLY = 0, 1, 2, 3, 4

# Indices into the output of a scan, which is valid even if a step raises:
INDEX, STEPS, BLOCKED, DIRECTION = 0, 1, 2, 3
_CUT = "risk.limits.max_quantity"


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
                if not pass_timer(orders, latest, at[i], i, at[i] < blocked_until):
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


def takes_orders(engine: BacktestEngine) -> bool:
    """Return whether a compiled scan may take orders.

    It cannot know what Python would decide of positions from before, nor have every signal read.
    """
    has_positions = bool(engine.portfolio.positions)
    return is_proven(engine.config) and not has_positions and not engine.signals.is_read


class ScanOrders:
    """Orders of a compiled scan on the side of Python: what it may do, and what it has done.

    Holds the arrays of the orders that the scan takes; `apply` writes them to the account.
    """

    def __init__(self, engine: BacktestEngine, symbols: Sequence[str]) -> None:
        self._engine = engine
        self._run = engine.runs[0]
        config, portfolio = engine.config, engine.portfolio
        self._limits = config.limits.exact
        self.is_on = takes_orders(engine)
        engine.plain_orders.is_on = False  # the scan has them
        self.taken = 0
        self._source = LogSource(
            self._run.key,
            PlainTerms(config, portfolio.instruments),
            engine.curve,
            engine.proposals,
            config.signal_ttl_s,
        )
        terms = self._source.terms
        self._core = CoreLog(self._limits, portfolio.instruments, terms)
        self._names = np.array((), object)
        self._indices: dict[str, int] = {}
        self._is_current = False  # lists and counts are those of the account
        self._day_ends_at = 0.0
        self.arrays = OrderArrays.of(0, self._limits, config)
        self.grow(symbols)

    def grow(self, symbols: Sequence[str]) -> None:
        """Have rows for all these symbols."""
        instruments = self._engine.portfolio.instruments
        self.arrays = OrderArrays.of(len(symbols), self._limits, self._engine.config)
        self._names = np.array(symbols, object)
        self._indices = {symbol: index for index, symbol in enumerate(symbols)}
        self._is_current = False
        if self.is_on:
            self._core.grow(symbols)
            for index, symbol in enumerate(symbols):
                self.arrays.parts[index, : ENTERS + 7] = self._terms(instruments[symbol])

    def _terms(self, instrument: Instrument) -> tuple[float, ...]:
        limits, minimum = self._limits, instrument.min_order_value
        fees, lots = self._engine.config.costs.of(instrument), 1 / instrument.lot
        is_known = not instrument.entry_block and lots == lots.to_integral_value()
        return (
            is_known,
            float(lots),
            float(instrument.floor_to_lot(limits.max_quantity)),
            float(max(limits.min_order_value, minimum / (1 - limits.exit_margin))),
            float(minimum),
            float(fees.of(Side.BUY, Decimal(1))),
            float(fees.of(Side.SELL, Decimal(1))),
        )

    def on_change(self) -> None:
        """Note that a position or an order has changed."""
        self._is_current = False

    def begin(self) -> OrderArrays | None:
        """Return the arrays with the timer and the account as they are now; None: they are off."""
        if not self.is_on:
            return None
        engine, (_, _, _, money, counts, recent, _, _) = self._engine, self.arrays
        money[DUE] = engine.due
        money[DAY_END], money[NEXT_POINT] = engine.day_ends_at, engine.curve.next_at
        cash, holds, realised = engine.manager.money
        money[CASH : SLACK + 1] = cash, holds, realised, 1e-9 * (1 + abs(cash) + abs(realised))
        times = engine.manager.order_times
        if engine.day_ends_at != self._day_ends_at or counts[ORDERS] != len(times):
            self._day_ends_at, count = engine.day_ends_at, len(times)
            counts[ORDERS], kept = count, times[-len(recent) :]
            recent[np.arange(count - len(kept), count) % len(recent)] = kept
        if not self._is_current:
            self._list_positions()
        counts[OPEN] = len(engine.manager.open)
        return self.arrays

    def _list_positions(self) -> None:
        portfolio, (_, parts, lists, _, counts, _, _, _) = self._engine.portfolio, self.arrays
        for number, each in enumerate(portfolio.positions.values()):
            index = lists[0, number] = self._indices[each.symbol]
            parts[index, AVERAGE] = float(each.average_price)
        buying = [
            (symbol, float(sum(each.remaining for each in orders.values())))
            for symbol, orders in self._engine.manager.open.items()
            if any(each.proposal.side is Side.BUY for each in orders.values())
        ]
        for number, (symbol, quantity) in enumerate(buying):
            index = lists[1, number] = self._indices[symbol]
            parts[index, QUANTITY] = quantity
        counts[HELD], counts[WAITING] = len(portfolio.positions), len(buying)
        self._is_current = True

    def apply(self, chunk: Chunk) -> None:
        """Apply what a scan of a chunk has logged."""
        if not self.is_on:
            return
        engine, (whole, _, _, money, counts, _, log, values) = self._engine, self.arrays
        engine.due, count = float(money[DUE]), int(counts[LOGGED])
        if money[DAY_END] != engine.day_ends_at:
            engine.pass_day(float(money[DAY_END]))
            self._day_ends_at = engine.day_ends_at
        if not count:
            return
        before = len(engine.proposals)
        cuts, waiting = self._write(chunk, log[:count], values[:count])
        taken = len(engine.proposals) - before
        self.taken += taken
        self._run.signals += taken
        if cuts:
            engine.cuts[_CUT] += cuts
        engine.clock.at, counts[LOGGED] = float(chunk.at[log[count - 1, ROW]]), 0
        if waiting:
            whole[:, SIDE] = 0
        self._is_current = not waiting

    def _write(
        self, chunk: Chunk, log: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
    ) -> tuple[int, int]:
        """Write rows to the account: in the core where it can, otherwise one by one."""
        manager, source = self._engine.manager, self._source
        if len(log) >= compiled_orders.LEAST_ROWS:
            account = manager.log_account(source.key)
            found = account and self._core.apply(log, values, chunk.at, account)
            if account and found:
                return manager.apply_core(found, account, source)
        kinds, symbols, rows = log.T
        names, at = self._names[symbols].tolist(), chunk.at[rows].tolist()
        return manager.apply_log(
            zip(kinds.tolist(), names, at, values.tolist(), strict=True), source
        )
