"""Orders of the compiled scan on the side of Python: what it may do, and what it has done."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from qts.backtest.compiled_orders import (
    AVERAGE,
    CASH,
    DAY_END,
    DUE,
    ENTERS,
    HELD,
    LOGGED,
    NEXT_POINT,
    ORDERS,
    QUANTITY,
    SIDE,
    SLACK,
    WAITING,
    OrderArrays,
    is_proven,
)
from qts.backtest.engine import BacktestEngine
from qts.backtest.order_log import LogSource, PlainTerms
from qts.backtest.tape import Chunk
from qts.domain import Instrument, Side

_CUT = "risk.limits.max_quantity"


def takes_orders(engine: BacktestEngine) -> bool:
    """Return whether a compiled scan may take orders.

    It cannot know what Python would decide of positions from before, nor have every signal read.
    """
    has_positions = bool(engine.portfolio.positions)
    return is_proven(engine.config) and not has_positions and not engine.signals.is_read


class ScanOrders:
    """Arrays of the orders that a compiled scan takes; `apply` writes them to the account."""

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
        if not count:
            return
        kinds, symbols, rows = log[:count].T
        at = chunk.at[rows].tolist()
        names = self._names[symbols].tolist()
        before = len(engine.proposals)
        cuts, waiting = engine.manager.apply_log(
            zip(kinds.tolist(), names, at, values[:count].tolist(), strict=True), self._source
        )
        taken = len(engine.proposals) - before
        self.taken += taken
        self._run.signals += taken
        if cuts:
            engine.cuts[_CUT] += cuts
        engine.clock.at, counts[LOGGED] = at[-1], 0
        if waiting:
            whole[:, SIDE] = 0
        self._is_current = not waiting
