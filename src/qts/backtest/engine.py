"""Backtest engine: every event passes the steps, gate, stops and matching of a live run.

    event ─▶ (timer, if due) ─▶ matching ─▶ stops ─▶ on_tick ─▶ five steps ─▶ gate
                                                                              │
                                         fills at this or a later event ◀─ matching

The timer fires once per interval of tape time: it runs the micro risk loop's check and the
strategy's `evaluate`, and adds a point to the equity curve. It is dated before the event that
follows it and does not see that event.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from qts import telemetry
from qts.backtest.config import BacktestConfig
from qts.backtest.order_manager import DUPLICATE, BacktestOrderManager
from qts.backtest.performance import EquityCurve
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio, day_end, day_of
from qts.backtest.stops import BacktestStops
from qts.brokers import PaperMatchingEngine
from qts.domain import Tick
from qts.pipeline import (
    MAX_ERRORS_IN_A_ROW,
    CallError,
    Cycle,
    DecisionPolicy,
    StepFailedError,
    call_strategy,
    compute_exposure,
    decide,
    evaluate,
    extract,
    transform,
)
from qts.risk import (
    OrderProposal,
    PreTradeGate,
    QuoteSnapshot,
    Refusal,
    RiskSnapshot,
    SafetyState,
    Switches,
)
from qts.strategies import Signal, StepStrategy, Strategy

log = telemetry.logger("backtest")

ERROR_LOG_INTERVAL_S = 10.0


class BacktestEngine:
    """Run of one strategy on one thread, driven by `on_tick` and `on_timer`."""

    def __init__(self, strategy: Strategy[Any], config: BacktestConfig) -> None:
        self.strategy = strategy
        self.config = config
        self.clock = BacktestClock()
        self.portfolio = BacktestPortfolio(self.clock)
        self.portfolio.load(config.cash, ())
        self._limits = config.limits.exact
        matching = PaperMatchingEngine(config.paper, config.costs, config.cash)
        self._listeners: list[Callable[[str], None]] = []
        self.manager = BacktestOrderManager(
            matching, self.portfolio, self.clock, self._limits, self._on_change
        )
        self.curve = EquityCurve(config.sample_s)
        self.proposals: list[OrderProposal] = []  # sent to the venue
        self.refusals: Counter[str] = Counter()
        self.trips: Counter[str] = Counter()
        self.signals = self.errors = 0
        self.stopped = ""
        self.due = -math.inf
        self.blocked_until, self.block_code = -math.inf, ""
        self._gate = PreTradeGate(self._limits)
        self._stops = (
            BacktestStops(
                config.stops, strategy.kind, self.portfolio, self.clock, self._submit, self._on_code
            )
            if config.use_stops
            else None
        )
        self._safety = SafetyState.NORMAL
        self._errors_in_a_row = self._cycles = 0
        self._day = 0
        self._steps = (
            strategy
            if isinstance(strategy, StepStrategy) and type(strategy).on_tick is StepStrategy.on_tick
            else None
        )
        self._has_on_tick = type(strategy).on_tick is not Strategy.on_tick
        self._has_evaluate = type(strategy).evaluate is not Strategy.evaluate

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with every symbol whose position or orders change."""
        self._listeners.append(listener)

    def on_tick(self, tick: Tick) -> None:
        """Handle a tick, or the close of a bar."""
        self.apply_tick(tick)
        if self._stops is not None and self.portfolio.position(tick.symbol) is not None:
            self._stops.on_tick(tick.symbol, tick.price)
        if not self.stopped and self._wants(tick.symbol):
            if self._steps is not None:
                position = self.portfolio.position(tick.symbol)
                quantity = float(position.quantity) if position else 0.0
                self.on_signals(self.call(self._steps.on_price, tick, quantity))
            elif self._has_on_tick:
                self.on_signals(self.call(self.strategy.on_tick, tick, self.portfolio.view()))

    def _wants(self, symbol: str) -> bool:
        try:
            return self.strategy.wants(symbol)
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything
            self.on_error(CallError.raised(error, self.strategy))
            return False

    def apply_tick(self, tick: Tick) -> None:
        self.clock.at = tick.at
        self.portfolio.apply_tick(tick)
        self.manager.on_tick(tick)

    def on_timer(self, at: float) -> None:
        """Run the timer that is due before an event at this time; once, however late it is."""
        if self.due > -math.inf:
            self.clock.at = self.due
            self._run_timer()
        if day_of(at) != self._day:
            self._start_day(at)
        self.due = self._next_due(at)

    def finish(self, at: float) -> None:
        self.clock.at = at
        self.curve.add(self.clock.at, self.portfolio, force=True)

    def _next_due(self, at: float) -> float:
        """Return the next time at which the timer has something to do."""
        interval = self.config.interval_s
        soon = max((math.floor(at / interval) + 1) * interval, math.nextafter(at, math.inf))
        if (self._has_evaluate and not self.stopped) or (self._stops and self.portfolio.positions):
            return soon
        sample = math.ceil(self.curve.next_at / interval) * interval
        return min(max(soon, sample), day_end(at))

    def _run_timer(self) -> None:
        if self._stops is not None and self.portfolio.positions:
            self._stops.check()
        if self._has_evaluate and not self.stopped:
            self.on_signals(self.call(self.strategy.evaluate, self.portfolio.view()))
        self.curve.add(self.clock.at, self.portfolio)

    def _start_day(self, at: float) -> None:
        """End the orders of the day before and release a lockdown."""
        first = self._day == 0
        self._day, self.clock.at = day_of(at), at
        self.manager.start_day()
        self._safety = SafetyState.NORMAL
        if self._stops is not None:
            self._stops.start_day()
        self._update_block()
        if first:
            self.curve.add(at, self.portfolio, force=True)

    def call(self, method: Callable[..., Iterable[Signal]], *arguments: Any) -> list[Signal]:
        """Call the strategy as live: count an error, and disable it after many in a row."""
        signals, error = call_strategy(method, *arguments)
        if error is None:
            self._errors_in_a_row = 0
        else:
            self.on_error(error)
        return signals

    def on_error(self, error: CallError, after_success: bool = False) -> None:
        self.errors += 1
        self._errors_in_a_row = 1 if after_success else self._errors_in_a_row + 1
        key = self.strategy.key
        if due := telemetry.log_every(ERROR_LOG_INTERVAL_S, f"backtest {error.event} {key}"):
            log.error(error.event, strategy=key, error=error.error, where=error.where, **due)
        if self._errors_in_a_row >= MAX_ERRORS_IN_A_ROW:
            self.stopped = f"{self._errors_in_a_row} errors in a row: {error}"

    def on_success(self, calls: int) -> None:
        if calls:
            self._errors_in_a_row = 0

    def count_blocked(self, entries: int) -> None:
        """Count entries that were signalled while the gate refuses all of them."""
        if entries:
            self.signals += entries
            self.refusals[self.block_code] += entries

    def on_signals(self, signals: list[Signal]) -> None:
        """Run the signals of one moment through the steps together."""
        if not signals:
            return
        self.signals += len(signals)
        actionable = [signal for signal in signals if self._is_actionable(signal)]
        if not actionable:
            return
        self._cycles += 1
        cycle = Cycle(
            number=self._cycles, strategy_key=self.strategy.key, started_at=self.clock.now()
        )
        policy = DecisionPolicy(safety=self._safety, expires_after_s=self.config.signal_ttl_s)
        try:
            cycle = transform(extract(cycle, self.portfolio.view()))
            cycle = evaluate(cycle, actionable, self._limits, self.portfolio.owners)
            cycle = decide(cycle, policy)
        except StepFailedError as error:
            self.trips[error.code] += 1
            return
        for decision in cycle.decisions:
            if decision.proposal is None:
                self.refusals[decision.reason] += 1
            else:
                self._submit(decision.proposal)

    def _is_actionable(self, signal: Signal) -> bool:
        symbol = signal.symbol
        if self.manager.has_recent_order(symbol, self.config.fill_timeout_s):
            return False
        if self.clock.at >= self.blocked_until or signal.intent_type.is_exit:
            return True
        if self.portfolio.position(symbol) is not None or symbol in self.manager.open:
            return True
        self.refusals[self.block_code] += 1
        return False

    def _submit(self, proposal: OrderProposal) -> str:
        result = self._gate.check(proposal, self._risk_snapshot(proposal))
        if isinstance(result, Refusal):
            codes = [reason.code for reason in result.reasons]
            self.refusals.update(codes)
            return " ".join(codes)
        refusal = self.manager.submit(result)
        if refusal != DUPLICATE:
            self.proposals.append(proposal)
        if refusal:
            self.refusals[refusal] += 1
        self._update_block()
        return refusal

    def _risk_snapshot(self, proposal: OrderProposal) -> RiskSnapshot:
        tick = self.portfolio.last_tick(proposal.symbol)
        quote = None
        if tick is not None:
            last, bid, ask = (Decimal(str(x)) for x in (tick.price, tick.bid, tick.ask))
            age_ms = (self.clock.at - tick.at) * 1000
            quote = QuoteSnapshot(last=last, bid=bid, ask=ask, age_ms=age_ms)
        return RiskSnapshot(
            market=quote,
            exposure=compute_exposure(
                proposal.symbol, self.manager.account_state(), self.portfolio
            ),
            switches=Switches(
                account_enabled=True,
                strategy_enabled=True,
                market_active=True,
                frozen=False,
                reconciled=True,
                session_open=True,
                safety=self._safety,
            ),
            now=self.clock.now(),
        )

    def _on_change(self, symbol: str) -> None:
        if self._stops is not None:
            self._stops.sync_positions()
        self._update_block()
        self.due = min(self.due, self._next_due(self.clock.at))
        for listener in self._listeners:
            listener(symbol)

    def _update_block(self) -> None:
        self.blocked_until, self.block_code = self.manager.entry_block()
        if self._safety is SafetyState.LOCKDOWN:
            self.blocked_until, self.block_code = day_end(self.clock.at), "G_SAFETY"

    def _on_code(self, code: str, _text: str) -> None:
        self.trips[code] += 1
        if code == "FS104":  # account loss limit: no entries before the next day
            self._safety = SafetyState.LOCKDOWN
            self._update_block()
