"""Backtest engine: every event passes the steps, gate, stops and matching of a live run.

    event ─▶ (timer, if due) ─▶ matching ─▶ stops ─▶ on_fill, on_order
                                                └─▶ on_tick ─▶ five steps ─▶ gate
                                                                              │
                                         fills at this or a later event ◀─ matching

A bar of a strategy's timeframes is handled when it is due, before the tick at that time.

The timer fires once per interval of tape time: it runs the micro risk loop's check and the
strategies' `evaluate`, and adds a point to the equity curve. It is dated before the event that
follows it and does not see that event.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from qts.backtest.config import BacktestConfig
from qts.backtest.order_manager import DUPLICATE
from qts.backtest.order_rows import proposal_rows
from qts.backtest.outcomes import OrderUpdates, SignalLog, change_orders, cut_reason
from qts.backtest.performance import EquityCurve
from qts.backtest.plain_order_manager import PlainOrderManager
from qts.backtest.plain_orders import PlainOrders
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio, Opening, day_end
from qts.backtest.stop_orders import BacktestStopOrders
from qts.backtest.stops import BacktestStops, risk_snapshot
from qts.backtest.strategy_run import StrategyRun
from qts.brokers import PaperMatchingEngine
from qts.domain import Bar, Instruments, OrderSnapshot, OrderTerms, RefusedError, Tick
from qts.pipeline import (
    NOT_TRIGGERED,
    Cycle,
    DecisionPolicy,
    PortfolioState,
    SignalOutcome,
    StepFailedError,
    decide,
    evaluate,
    extract,
    has_method,
    own_stops,
    transform,
    with_strategies,
)
from qts.risk import OrderProposal, PositionStops, PreTradeGate, Refusal, SafetyState
from qts.strategies import Cancel, Instruction, Signal, Strategy, StrategyKind, View

IN_FLIGHT = "an order of its symbol is in flight"


class BacktestEngine:
    """Run of strategies on one account and one thread, driven by `on_tick` and `on_timer`."""

    def __init__(
        self,
        strategies: Sequence[Strategy[Any]],
        config: BacktestConfig,
        instruments: Instruments,
        opening: Opening | None = None,
        on_signal: Callable[[SignalOutcome], None] | None = None,
    ) -> None:
        """Begin with the cash of the settings, or with the account of `opening`."""
        self.runs = [StrategyRun(each) for each in strategies]
        self._by_key, self.updates = {run.key: run for run in self.runs}, OrderUpdates(self)
        self._tick_runs = [run for run in self.runs if run.takes_ticks]
        if len(self._by_key) < len(self.runs):
            raise RefusedError("two strategies have the same key; expected one of each")
        self.config = config
        self.clock = BacktestClock()
        self.portfolio = BacktestPortfolio(self.clock, instruments)
        opened = opening or Opening(PortfolioState(config.cash))
        self.portfolio.open_with(opened)
        self.signals = SignalLog(on_signal)
        self._limits = with_strategies(config.limits.exact, config.instances)
        matching = PaperMatchingEngine(
            config.paper,
            config.costs,
            opened.account.cash,
            instruments,
            opened.account.positions.values(),
            self.portfolio.ticks,
        )
        self._listeners: list[Callable[[str], None]] = []
        self.watched: set[str] = set()  # symbols with orders or stops that wait for a price
        self.manager = PlainOrderManager(
            matching, self.portfolio, self.clock, self._limits, self._on_change, self.updates.takers
        )
        self.stop_orders = BacktestStopOrders(
            self.portfolio, self.clock, self.updates.takers, self._on_change, self.manager.triggered
        )
        self.signals.on_refused = self.stop_orders.refused
        self.curve = EquityCurve(config.sample_s)
        self.proposals = proposal_rows()  # sent to the venue
        self.cuts, self.trips = Counter[str](), Counter[str]()
        self.due, self.timer_due = -math.inf, math.inf  # the latter of the first on_timer
        self._block: tuple[float, str] | None = None
        self._evaluating = [run for run in self.runs if run.has_evaluate]
        self._gate = PreTradeGate(self._limits)
        self._own_stops = own_stops(config.stops, config.instances)
        self.has_stops = config.use_stops
        self._stops = (
            BacktestStops(
                config.stops,
                self._owner_of,
                self.portfolio,
                self.clock,
                self._submit_exit,
                self._on_code,
            )
            if config.use_stops
            else None
        )
        self.safety, self._cycles, self.day_ends_at = SafetyState.NORMAL, 0, -math.inf
        self.plain_orders = PlainOrders(self)

    @property
    def next_expiry(self) -> float:
        """When the time of an order is over, whatever its symbol does."""
        return min(self.manager.next_deadline, self.stop_orders.due)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with every symbol whose position or orders change."""
        self._listeners.append(listener)

    def on_tick(self, tick: Tick) -> None:
        """Handle a tick; one that nothing waits for only becomes the last of its symbol."""
        at, manager = tick.at, self.manager
        if tick.symbol in self.watched or at >= manager.next_deadline or at >= self.stop_orders.due:
            self.apply_tick(tick)
            self.check_stops(tick, self.clock.monotonic_ns())
        else:
            self.clock.at = at
            self.portfolio.apply_tick(tick)
        if self.updates.has_any:
            self.updates.handle()
        self.call_on_tick(tick)

    def call_on_tick(self, tick: Tick) -> None:
        """Call on_tick of the strategies with the last tick of a symbol."""
        for run in self._tick_runs:
            if found := run.on_tick(tick, self.portfolio):
                self.on_signals(run, found)
        if self.updates.has_any:
            self.updates.handle()

    def apply_tick(self, tick: Tick) -> None:
        """Set the price of a symbol and match its orders."""
        self.clock.at = tick.at
        self.portfolio.apply_tick(tick)
        self.manager.on_tick(tick)
        self.trigger_stop_orders(tick)

    def trigger_stop_orders(self, tick: Tick) -> None:
        """Send the stop orders that a price reaches; one waits for an order in flight."""
        for key, signal in self.stop_orders.triggered(tick):
            run = self._by_key[key]
            if self.is_ordered(signal):
                self.updates.wait(run, signal)
            else:
                self._act(run, [signal])

    def check_stops(self, tick: Tick, at_ns: int) -> None:
        """Let the stops see a price; `at_ns` is the time that hold times are measured with."""
        if self._stops is not None and self.portfolio.position(tick.symbol) is not None:
            self._stops.on_tick(tick.symbol, tick.price, at_ns)

    def stop_levels(self, symbol: str) -> list[Decimal]:
        """Return the prices at which the stops of a symbol fire as they are now."""
        return self._stops.levels(symbol) if self._stops is not None else []

    def on_bar(self, run: StrategyRun, bar: Bar, values: tuple[float, ...], due: float) -> None:
        """Handle a bar of a strategy at the time at which it is due."""
        self.clock.at = due
        if found := run.on_bar(bar, values, self.portfolio):
            self.on_signals(run, found)
        if self.updates.has_any:
            self.updates.handle()

    def on_strategy_timer(self, at: float) -> None:
        """Call on_timer where it is due, before an event at this time; once, however late it is."""
        self.clock.at = due = self.timer_due
        for run in self.runs:
            if run.timer_due == due:
                self.on_signals(run, run.on_timer(at, self.portfolio))
        self.timer_due = min(run.timer_due for run in self.runs)
        self.updates.handle()

    def start(self, at: float) -> None:
        """Begin at the time of the first event."""
        self.clock.at = at
        self.manager.start()
        for symbol in self.portfolio.positions:
            self._on_change(symbol)
        for run in self.runs:
            run.start(at)
            if has_method(run.strategy, "on_start"):
                self.on_signals(run, run.call(run.strategy.on_start, self.view_of(run)))
        self.timer_due = min(run.timer_due for run in self.runs)

    def view_of(self, run: StrategyRun) -> View:
        """Return what a strategy sees now."""
        return run.view_of(self.portfolio)

    def on_timer(self, at: float) -> None:
        """Run the timer that is due before an event at this time; once, however late it is."""
        if self.due > -math.inf:
            self.clock.at = self.due
            self.run_timer()
        self.start_day(at)
        self.due = self._next_due(at)

    def finish(self, at: float) -> None:
        self.clock.at = at
        for run in self.runs:
            if has_method(run.strategy, "on_stop") and not run.stopped:
                for each in run.call(run.strategy.on_stop, self.view_of(run)):
                    if isinstance(each, Cancel):
                        self._cancel(each.order, run.key)
        self.manager.finish()
        for proposal in self.stop_orders.finish():
            self.signals.report(proposal.strategy_key, proposal, NOT_TRIGGERED)
        self.curve.add(self.clock.at, self.portfolio, force=True)

    def _next_due(self, at: float) -> float:
        """Return the next time at which the timer has something to do."""
        interval, soon = self.config.interval_s, self._soon(at)
        has_stops = self._stops and self.portfolio.positions
        if has_stops or any(not each.stopped for each in self._evaluating):
            return soon
        sample = math.ceil(self.curve.next_at / interval) * interval
        return min(max(soon, sample), day_end(at))

    def _soon(self, at: float) -> float:
        interval = self.config.interval_s
        return max((math.floor(at / interval) + 1) * interval, math.nextafter(at, math.inf))

    def run_timer(self, *, force: bool = False) -> None:
        """Check the stops, call evaluate and add a point to the equity curve."""
        if self._stops is not None and self.portfolio.positions:
            self._stops.check()
        for run in self._evaluating:
            if not run.stopped and run.is_warm:
                self.on_signals(run, run.call(run.strategy.evaluate, self.view_of(run)))
        if self.updates.has_any:
            self.updates.handle()
        self.curve.add(self.clock.at, self.portfolio, force=force)

    def start_day(self, at: float) -> None:
        """On a new day, end the orders of the day before and release a lockdown."""
        if at < self.day_ends_at:
            return
        first = self.day_ends_at == -math.inf
        self.day_ends_at, self.clock.at = day_end(at), at
        self.manager.start_day()
        self.safety, self._block = SafetyState.NORMAL, None
        if self._stops is not None:
            self._stops.start_day()
        if first:
            self.curve.add(at, self.portfolio, force=True)

    def pass_day(self, ends_at: float) -> None:
        """Note that a compiled scan has begun a day; no order was open."""
        self.day_ends_at, self._block = ends_at, None

    def is_ordered(self, signal: Signal) -> bool:
        """Return whether an order of its symbol is in flight, as live."""
        return self.manager.has_recent_order(signal, self.config.fill_timeout_s)

    def count_blocked(self, run: StrategyRun, entries: int) -> None:
        """Count entries that were signalled while the gate refuses all of them."""
        if entries:
            run.signals += entries
            self.signals.count(run, self.entry_block()[1], entries)

    def signals_in(self, run: StrategyRun, returned: Sequence[Instruction]) -> list[Signal]:
        """Cancel and replace orders; return the signals, with those of replacements."""
        return change_orders(returned, partial(self._cancel, key=run.key), self.clock.at)

    def _cancel(self, order: OrderSnapshot, key: str) -> tuple[Decimal, OrderTerms] | None:
        return self.stop_orders.cancel(order, key) or self.manager.cancel(order, key)

    def on_signals(self, run: StrategyRun, returned: Sequence[Instruction]) -> None:
        """Run the signals of one moment through the steps together, after changes of orders."""
        if not returned or self.plain_orders.take(run, returned):
            return
        run.signals += len(signals := self.signals_in(run, returned))
        self._act(run, signals)

    def _act(self, run: StrategyRun, signals: Sequence[Signal]) -> None:
        actionable = [signal for signal in signals if self._is_actionable(run, signal)]
        if not actionable:
            return
        self._cycles += 1
        cycle = Cycle(number=self._cycles, strategy_key=run.key, started_at=self.clock.now())
        policy = DecisionPolicy(safety=self.safety, expires_after_s=self.config.signal_ttl_s)
        instruments, owners = self.portfolio.instruments, self.portfolio.owners
        try:
            cycle = transform(extract(cycle, self.portfolio.view()))
            cycle = evaluate(cycle, actionable, self._limits, instruments, owners)
            cycle = decide(cycle, policy)
        except StepFailedError as error:
            self.trips[error.code] += 1
            for signal in actionable:
                self.signals.report(run.key, signal, error.code)
            return
        for evaluation, decision in zip(cycle.evaluations, cycle.decisions, strict=True):
            if decision.proposal is None:
                self.signals.refuse(run, decision.signal, decision.reason)
                continue
            if cut := cut_reason(evaluation, self._limits, instruments[decision.signal.symbol]):
                self.cuts[cut] += 1
            if decision.proposal.trigger is None:
                self.signals.report(run.key, decision.signal, self.submit(decision.proposal))
            elif not self.stop_orders.place(decision.proposal):
                self.signals.count(run, DUPLICATE)

    def _is_actionable(self, run: StrategyRun, signal: Signal) -> bool:
        if signal.trigger is not None:  # the gate sees it when it is triggered
            return True
        if self.is_ordered(signal):
            self.signals.refuse(run, signal, IN_FLIGHT)
            return False
        if signal.intent_type.is_exit:
            return True
        until, code = self.entry_block()
        if self.clock.at >= until:
            return True
        if self.portfolio.position(signal.symbol) is not None or signal.symbol in self.manager.open:
            return True
        self.signals.refuse(run, signal, code)
        return False

    def _submit_exit(self, proposal: OrderProposal) -> str:
        refusal = self.submit(proposal)
        self.signals.report(proposal.strategy_key, proposal, refusal)
        return refusal

    def submit(self, proposal: OrderProposal) -> str:
        """Send a proposal through the gate; return why it was refused or rejected, if it was."""
        run = self._by_key.get(proposal.strategy_key)
        self.manager.make_room(proposal)
        state = self.manager.account_state()
        snapshot = risk_snapshot(proposal, state, self.portfolio, self.clock, self.safety)
        result = self._gate.check(proposal, snapshot)
        if isinstance(result, Refusal):
            codes = [reason.code for reason in result.reasons]
            for code in codes:
                self.signals.count(run, code)
            return " ".join(codes)
        refusal = self.manager.submit(result)
        if refusal != DUPLICATE:
            self.proposals.append(proposal)
        if refusal:
            self.signals.count(run, refusal)
        self._block = None
        return refusal

    def _owner_of(self, symbol: str) -> tuple[StrategyKind, PositionStops | None]:
        """Return kind and own stops of the strategy that holds a symbol; manual is as live."""
        run = self._by_key.get(self.portfolio.owners.get(symbol, ""))
        if run is None:
            return "PORTFOLIO", None
        return run.strategy.kind, self._own_stops.get(run.key)

    def _on_change(self, symbol: str) -> None:
        stops, self._block = self._stops, None
        if (
            self.manager.is_open(symbol)
            or (stops is not None and self.portfolio.position(symbol) is not None)
            or symbol in self.stop_orders
        ):
            self.watched.add(symbol)
        else:
            self.watched.discard(symbol)
        if stops is not None:
            stops.sync_position(symbol)
            if self.portfolio.positions:
                self.due = min(self.due, self._soon(self.clock.at))
        for listener in self._listeners:
            listener(symbol)

    def entry_block(self) -> tuple[float, str]:
        """Return until when the gate refuses every entry into a new symbol, and its code."""
        if self._block is None:
            found = self.manager.entry_block()
            is_locked = self.safety is SafetyState.LOCKDOWN
            self._block = (day_end(self.clock.at), "G_SAFETY") if is_locked else found
        return self._block

    def _on_code(self, code: str, _text: str) -> None:
        self.trips[code] += 1
        if code == "FS104":  # account loss limit: no entries before the next day
            self.safety, self._block = SafetyState.LOCKDOWN, None
