"""Calls of on_fill and on_order in a backtest, and signals that wait for an order in flight."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qts.backtest.strategy_run import StrategyRun
from qts.pipeline import StrategyUpdate, call_with_update
from qts.strategies import Signal

if TYPE_CHECKING:
    from qts.backtest.engine import BacktestEngine


class OrderUpdates:
    """What happened to orders since their strategies were last called.

    `takers` keep an update for a strategy, by its key, where it takes them.
    """

    def __init__(self, engine: BacktestEngine) -> None:
        self._engine = engine
        self.takers = {run.key: partial(self._add, run) for run in engine.runs if run.takes_updates}
        self.has_any = False

    def _add(self, run: StrategyRun, update: StrategyUpdate) -> None:
        run.updates.append(update)
        self.has_any = True

    def wait(self, run: StrategyRun, signal: Signal) -> None:
        """Let a signal wait for the order of its symbol that is in flight."""
        run.waiting.append(signal)
        self.has_any = True

    def handle(self) -> None:
        """Call on_fill and on_order with what happened since the last call."""
        if not self.has_any:
            return
        for run in self._engine.runs:
            if run.waiting or run.updates:
                self._handle(run)
        self.has_any = any(run.waiting or run.updates for run in self._engine.runs)

    def _handle(self, run: StrategyRun) -> None:
        """Call the strategy with what happened to its orders; as live, its signals wait for one.

        A signal that answers a fill or an order waits for an order of its symbol in flight.
        """
        engine = self._engine
        found, run.waiting = run.waiting, []
        while found or (run.updates and not run.stopped):
            if not found:
                view, update = engine.view_of(run), run.updates.popleft()
                run.calls += 1
                for returned, error in call_with_update(run.strategy, update, view):
                    run.count_call(error)
                    found += engine.signals_in(run, returned)
            ready = [each for each in found if not engine.is_ordered(each)]
            run.waiting += [each for each in found if each not in ready]
            found = []
            engine.on_signals(run, ready)
