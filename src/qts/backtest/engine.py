"""A strategy in the past: every event through the same steps, gate, stops and matching as live.

    event ─▶ (beat, when one is due) ─▶ matching ─▶ stops ─▶ on_tick ─▶ the five steps ─▶ gate
                                                                                  │
                                             fills at this or a later event ◀─ matching
A beat comes once an interval of the past's own time: the micro risk loop's look, the strategy's
`evaluate`, a point of the equity curve. It is dated before the event that it comes with, and sees
nothing of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from qts import telemetry
from qts.backtest.config import BacktestConfig
from qts.backtest.order_manager import ACTED_ON, BacktestOrderManager
from qts.backtest.performance import EquityCurve
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio, day_end, day_of
from qts.backtest.stops import BacktestStops
from qts.brokers import PaperMatchingEngine
from qts.domain import Tick
from qts.pipeline import (
    GIVE_UP_AFTER,
    Cycle,
    DecisionPolicy,
    StepFailedError,
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


class BacktestEngine:
    """For one strategy and one thread. `event` and `beat` are all that happens."""

    def __init__(self, strategy: Strategy[Any], config: BacktestConfig) -> None:
        self.strategy = strategy
        self.config = config
        self.clock = BacktestClock()
        self.world = BacktestPortfolio(self.clock)
        self.world.load(config.cash, ())
        self._limits = config.limits.exact
        matching = PaperMatchingEngine(config.paper, config.costs, config.cash)
        self.desk = BacktestOrderManager(matching, self.world, self.clock, self._limits)
        self.desk.changed = self._changed
        self.curve = EquityCurve(config.sample_s)
        self.proposals: list[OrderProposal] = []  # that went to the venue
        self.refusals: Counter[str] = Counter()
        self.trips: Counter[str] = Counter()
        self.signals = self.errors = 0
        self.stopped = ""
        self.due = -math.inf
        self.closed_until, self.closed_code = -math.inf, ""
        self.on_change: Callable[[str], None] = lambda _symbol: None
        self._gate = PreTradeGate(self._limits)
        self._stops = (
            BacktestStops(
                config.stops, strategy.kind, self.world, self.clock, self._trade, self._tripped
            )
            if config.use_stops
            else None
        )
        self._safety = SafetyState.NORMAL
        self._in_a_row = self._numbers = 0
        self._day = 0
        self._steps = (
            strategy
            if isinstance(strategy, StepStrategy) and type(strategy).on_tick is StepStrategy.on_tick
            else None
        )
        self._hears_ticks = type(strategy).on_tick is not Strategy.on_tick
        self._evaluates = type(strategy).evaluate is not Strategy.evaluate

    # --- what happens ---------------------------------------------------------------------------

    def on_tick(self, tick: Tick) -> None:
        """A tick, or the close of a bar."""
        self.arrived(tick)
        if self._stops is not None and self.world.held(tick.symbol) is not None:
            self._stops.tick(tick.symbol, tick.price)
        if not self.stopped and self.strategy.wants(tick.symbol):
            if self._steps is not None:
                held = self.world.held(tick.symbol)
                quantity = float(held.quantity) if held else 0.0
                self.heard(self.call(self._steps.on_price, tick, quantity))
            elif self._hears_ticks:
                self.heard(self.call(self.strategy.on_tick, tick, self.world.view()))

    def arrived(self, tick: Tick) -> None:
        self.clock.at = tick.at
        self.world.apply_tick(tick)
        self.desk.tick(tick)

    def on_timer(self, at: float) -> None:
        """What was due before the event at this moment; at most once, however long ago."""
        if self.due > -math.inf:
            self.clock.at = self.due
            self._look()
        if day_of(at) != self._day:
            self._new_day(at)
        self.due = self._next_due(at)

    def end(self, at: float) -> None:
        self.clock.at = at
        self.curve.add(self.clock.at, self.world, force=True)

    def _next_due(self, at: float) -> float:
        """The next beat, or the next one that has something to do."""
        interval = self.config.interval_s
        soon = max((math.floor(at / interval) + 1) * interval, math.nextafter(at, math.inf))
        if (self._evaluates and not self.stopped) or (self._stops and self.world.positions):
            return soon
        sample = math.ceil(self.curve.next_at / interval) * interval
        return min(max(soon, sample), day_end(at))

    def _look(self) -> None:
        if self._stops is not None and self.world.positions:
            self._stops.look()
        if self._evaluates and not self.stopped:
            self.heard(self.call(self.strategy.evaluate, self.world.view()))
        self.curve.add(self.clock.at, self.world)

    def _new_day(self, at: float) -> None:
        """Yesterday's orders have ended, and a person has looked at what was locked."""
        first = self._day == 0
        self._day, self.clock.at = day_of(at), at
        self.desk.new_day()
        self._safety = SafetyState.NORMAL
        if self._stops is not None:
            self._stops.new_day()
        self._close()
        if first:
            self.curve.add(at, self.world, force=True)

    # --- what a strategy wants ------------------------------------------------------------------

    def call(self, method: Callable[..., Iterable[Signal]], *arguments: Any) -> list[Signal]:
        """As live: an error is told and counted, and many in a row end the strategy."""
        try:
            found = list(method(*arguments) or ())
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything
            self.failed(error)
            return []
        self._in_a_row = 0
        return found

    def failed(self, error: Exception, after_success: bool = False) -> None:
        self.errors += 1
        self._in_a_row = 1 if after_success else self._in_a_row + 1
        if self._in_a_row == 1:
            log.error("a strategy failed", strategy=self.strategy.key, error=repr(error))
        if self._in_a_row >= GIVE_UP_AFTER:
            self.stopped = f"it failed {self._in_a_row} times in a row: {error!r}"

    def succeeded(self, times: int) -> None:
        if times:
            self._in_a_row = 0

    def passed_over(self, entries: int) -> None:
        """So many entries were wanted while the gate is known to refuse them all."""
        if entries:
            self.signals += entries
            self.refusals[self.closed_code] += entries

    def heard(self, signals: list[Signal]) -> None:
        """Signals of one moment go through the steps together."""
        if not signals:
            return
        self.signals += len(signals)
        # What is no signal goes on too: the steps say what is wrong with it.
        fresh = [s for s in signals if not isinstance(s, Signal) or self._worth_asking(s)]
        if not fresh:
            return
        self._numbers += 1
        cycle = Cycle(
            number=self._numbers, strategy_key=self.strategy.key, started_at=self.clock.now()
        )
        leave = DecisionPolicy(safety=self._safety, expires_after_s=self.config.signal_ttl_s)
        try:
            cycle = transform(extract(cycle, self.world.view()))
            cycle = evaluate(cycle, fresh, self._limits, self.world.owners)
            cycle = decide(cycle, leave)
        except StepFailedError as error:
            self.trips[error.code] += 1
            return
        for decision in cycle.decisions:
            if decision.proposal is None:
                self.refusals[decision.reason] += 1
            else:
                self._trade(decision.proposal)

    def _worth_asking(self, signal: Signal) -> bool:
        symbol = signal.symbol
        if self.desk.busy(symbol, self.config.fill_timeout_s):
            return False
        if self.clock.at >= self.closed_until or signal.intent_type.is_exit:
            return True
        if self.world.held(symbol) is not None or symbol in self.desk.open:
            return True
        self.refusals[self.closed_code] += 1
        return False

    def _trade(self, proposal: OrderProposal) -> str:
        answer = self._gate.check(proposal, self._facts(proposal))
        if isinstance(answer, Refusal):
            codes = [reason.code for reason in answer.reasons]
            self.refusals.update(codes)
            return " ".join(codes)
        why = self.desk.submit(answer)
        if why != ACTED_ON:
            self.proposals.append(proposal)
        if why:
            self.refusals[why] += 1
        self._close()
        return why

    def _facts(self, proposal: OrderProposal) -> RiskSnapshot:
        tick = self.world.last_tick(proposal.symbol)
        market = None
        if tick is not None:
            last, bid, ask = (Decimal(str(x)) for x in (tick.price, tick.bid, tick.ask))
            age_ms = (self.clock.at - tick.at) * 1000
            market = QuoteSnapshot(last=last, bid=bid, ask=ask, age_ms=age_ms)
        return RiskSnapshot(
            market=market,
            exposure=compute_exposure(proposal.symbol, self.desk.standing(), self.world),
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

    # --- what changes ---------------------------------------------------------------------------

    def _changed(self, symbol: str) -> None:
        if self._stops is not None:
            self._stops.hold()
        self._close()
        self.due = min(self.due, self._next_due(self.clock.at))
        self.on_change(symbol)

    def _close(self) -> None:
        self.closed_until, self.closed_code = self.desk.closed()
        if self._safety is SafetyState.LOCKDOWN:
            self.closed_until, self.closed_code = day_end(self.clock.at), "G_SAFETY"

    def _tripped(self, code: str, _text: str) -> None:
        self.trips[code] += 1
        if code == "FS104":  # the account has lost too much: no entries before the next day
            self._safety = SafetyState.LOCKDOWN
            self._close()
