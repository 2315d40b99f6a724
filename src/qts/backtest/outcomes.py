"""What becomes of signals and orders: refusals, sizes, changes, calls of on_fill and on_order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from qts.backtest.order_manager import DUPLICATE
from qts.backtest.strategy_run import StrategyRun
from qts.domain import Instrument, OrderSnapshot, OrderTerms
from qts.pipeline import Evaluation, SignalOutcome, StrategyUpdate, call_with_update
from qts.risk import OrderProposal, RiskLimits
from qts.strategies import Instruction, Replace, Signal

if TYPE_CHECKING:
    from qts.backtest.engine import BacktestEngine


class SignalLog:
    """What became of signals: counts refusals, in all and by strategy.

    `on_signal` takes each outcome, if it is given; `on_refused` takes what is refused.
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


CancelNow = Callable[[OrderSnapshot], tuple[Decimal, OrderTerms] | None]


def change_orders(returned: Iterable[Instruction], cancel: CancelNow, at: float) -> list[Signal]:
    """Cancel and replace orders; return the signals, with those of replacements.

    An order ends at once.
    """
    signals: list[Signal] = []
    for each in returned:
        if isinstance(each, Signal):
            signals.append(each)
            continue
        if isinstance(each, Replace) and each.changes_nothing:
            continue
        ended = cancel(each.order)
        if ended is not None and isinstance(each, Replace):
            filled, terms = ended
            if signal := each.signal(at, filled, terms):
                signals.append(signal)
    return signals


def cut_reason(evaluation: Evaluation, limits: RiskLimits, instrument: Instrument) -> str:
    """Return what made an order smaller than its signal; empty: nothing did.

    A signal without a quantity asks for as much as one order may be, in whole lots.
    """
    asked, allowed, final = (
        evaluation.recommended_qty,
        evaluation.allowed_qty,
        evaluation.final_qty,
    )
    if final < allowed and final < instrument.floor_to_lot(allowed):
        return "risk.limits.max_exposure or max_symbol_exposure"
    if allowed < asked and evaluation.price is not None:
        if evaluation.signal.intent_type.is_exit:
            return "no more than is held"
        by_value = limits.max_order_value / evaluation.price
        name = "max_quantity" if limits.max_quantity < by_value else "max_order_value"
        return f"risk.limits.{name}"
    return "whole lots" if evaluation.signal.quantity is not None and final < asked else ""
