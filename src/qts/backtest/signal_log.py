"""What became of the signals of a backtest: counts of refusals, and each outcome for a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from qts.backtest.order_manager import DUPLICATE
from qts.backtest.strategy_run import StrategyRun
from qts.pipeline import SignalOutcome
from qts.risk import OrderProposal
from qts.strategies import Signal


class SignalLog:
    """Counts refusals, in all and by strategy; `on_signal` takes each outcome, if it is given.

    `on_refused` takes what is refused.
    """

    def __init__(self, on_signal: Callable[[SignalOutcome], None] | None) -> None:
        self._on_signal = on_signal
        self.is_read = on_signal is not None
        self.refusals: Counter[str] = Counter()
        self.on_refused: Callable[[str, Signal | OrderProposal, str], None] | None = None

    def count(self, run: StrategyRun | None, reason: str, times: int = 1) -> None:
        self.refusals[reason] += times
        if run is not None:
            run.refusals[reason] += times

    def refuse(self, run: StrategyRun, signal: Signal, reason: str) -> None:
        self.count(run, reason)
        self.report(run.key, signal, reason)

    def report(self, key: str, signal: Signal | OrderProposal, reason: str) -> None:
        if reason and self.on_refused is not None:
            self.on_refused(key, signal, reason)
        if self._on_signal is not None and reason != DUPLICATE:
            self._on_signal(SignalOutcome.of(key, signal, reason))
