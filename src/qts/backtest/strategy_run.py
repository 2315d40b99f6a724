"""One strategy in a backtest: its calls, what it has received, its errors and its counts."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from qts import telemetry
from qts.backtest.bar_tape import Rows
from qts.backtest.performance import EquityCurve
from qts.backtest.portfolio import BacktestPortfolio
from qts.domain import Bar, Tick, Timeframe
from qts.pipeline import (
    MAX_ERRORS_IN_A_ROW,
    CallError,
    CallResult,
    StrategyUpdate,
    check_returned,
    has_method,
    takes_updates,
)
from qts.strategies import (
    Instruction,
    Signal,
    StepStrategy,
    Strategy,
    StrategyBars,
    View,
    WarmUpCount,
    bar_subscription,
)

log = telemetry.logger("backtest")

ERROR_LOG_INTERVAL_S = 10.0


class Core(Protocol):
    """Object of the C++ core that calls a strategy."""

    @property
    def calls(self) -> int: ...


class BarCore(Core, Protocol):
    """BarCalls."""

    @property
    def points(self) -> bytes: ...
    @property
    def worth(self) -> tuple[Decimal, float, float] | None: ...
    def write_ends(self) -> None: ...
    def play(self, *arguments: Any) -> Any: ...
    def play_rest(self, *arguments: Any) -> Any: ...


class TickCore(Core, Protocol):
    """TickCalls."""

    def play_prices(self, *arguments: Any) -> Any: ...
    def play_ticks(self, *arguments: Any) -> Any: ...


class StrategyRun:
    """Strategy with its bars, warm-up, timer and errors."""

    def __init__(self, strategy: Strategy[Any]) -> None:
        self.strategy = strategy
        self.key = strategy.key
        self.subscription = bar_subscription(strategy)
        self.signals = self.errors = 0
        self.calls = self.returned = 0  # calls, and the number of the last that has returned
        self.refusals: Counter[str] = Counter()
        self.stopped = ""
        self.timer_due = math.inf
        self.updates: deque[StrategyUpdate] = deque()
        self.waiting: list[Signal] = []  # for an order of their symbol that is in flight
        self.takes_updates = takes_updates(strategy)
        self.has_evaluate = has_method(strategy, "evaluate")
        self._has_on_bar = has_method(strategy, "on_bar")
        self.errors_in_a_row = 0
        self._core: Core | None = None
        self._bars = StrategyBars.of(strategy)
        self._has_warm_up = self.subscription.warm_up > 0
        self._warm_up = WarmUpCount(self.subscription)
        self._takes_all = (
            strategy.symbols is None
            and not has_method(strategy, "wants")
            and not self.subscription.warm_up
        )
        self._steps = (
            strategy
            if isinstance(strategy, StepStrategy)
            and type(strategy).on_tick is StepStrategy.on_tick
            and not strategy.timeframes
            else None
        )
        self.takes_ticks = has_method(strategy, "on_tick") and not (
            isinstance(strategy, StepStrategy) and self._steps is None and strategy.timeframes
        )

    @property
    def is_warm(self) -> bool:
        """Whether a symbol has the bars of the warm-up, if the strategy has one."""
        return bool(self._warm_up.warm) or self._warm_up.is_warm("")

    @property
    def progress(self) -> int:
        """Number that grows with each call, also while the core calls."""
        return self.calls + (self._core.calls if self._core is not None else 0)

    def use_core(self, core: Core, write_ends: Callable[[], None] | None = None) -> None:
        """Let the core call the strategy; `write_ends` is called before its bars are read."""
        self._core = core
        if self._bars is not None and write_ends is not None:
            self._bars.before_read = write_ends

    def start(self, at: float) -> None:
        """Set the timer, at the time of the first event."""
        if self.strategy.timer_s:
            self.timer_due = (math.floor(at / self.strategy.timer_s) + 1) * self.strategy.timer_s

    def wants(self, symbol: str) -> bool:
        try:
            return self.strategy.wants(symbol)
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything
            self.on_error(CallError.raised(error, self.strategy))
            return False

    def view_of(self, portfolio: BacktestPortfolio) -> View:
        """Return what the strategy sees: the account with its own bars and orders."""
        return portfolio.view_of(self.key, self._bars)

    def on_tick(self, tick: Tick, portfolio: BacktestPortfolio) -> Sequence[Instruction]:
        """Return the signals of a tick; a step needs no view, only the position in its symbol."""
        symbol = tick.symbol
        if self.stopped:
            return ()
        if not (self._takes_all or (self.wants(symbol) and self._warm_up.is_warm(symbol))):
            return ()
        if self._steps is None:
            return self.call(self.strategy.on_tick, tick, self.view_of(portfolio))
        position = portfolio.position(symbol)
        held = float(position.quantity) if position is not None else 0.0
        return self.call(self._steps.on_price, tick, held)

    def expect_bars(
        self, symbol: str, timeframe: Timeframe, table: Rows, places: npt.NDArray[np.int64]
    ) -> None:
        """Take the rows of the next bars of a series, at these places of a table, before them."""
        if self._bars is not None:
            self._bars.expect(symbol, timeframe, table, places)

    def add_history(self, bar: Bar, values: tuple[float, ...]) -> None:
        """Take a bar from before the backtest, without a call."""
        self._warm_up.add(bar)
        if self._bars is not None:
            self._bars.add(bar, values)

    def on_bar(
        self, bar: Bar, values: tuple[float, ...], portfolio: BacktestPortfolio
    ) -> Sequence[Instruction]:
        if not self._add(bar, values):
            return ()
        return self.call(self.strategy.on_bar, bar, portfolio.view_of(self.key, self._bars))

    @property
    def is_ready(self) -> bool:
        """Whether every bar is a call of on_bar."""
        return self._has_on_bar and not (self._has_warm_up or self.stopped)

    def expected_series(self, symbols: Iterable[str]) -> list[Any]:
        """Return the series of symbols whose rows came before their bars; None: they did not."""
        return [self._bars and self._bars.expected.get(symbol) for symbol in symbols]

    def play_bars(
        self, core: BarCore, portfolio: BacktestPortfolio, curve: EquityCurve, until: float
    ) -> Sequence[Instruction] | None:
        """Call on_bar with bars before `until` while it returns nothing.

        Returns the instructions of the call that ended it; None: there are no more bars.
        """
        view = portfolio.view_of(self.key, self._bars, is_priced=False)  # the core prices it
        clock, reprice = portfolio.clock, portfolio.reprice
        try:
            on_bar = self.strategy.on_bar
            return self._play(core.play, on_bar, clock, reprice, view, until)
        finally:
            portfolio.set_worth(core.worth)
            curve.add_played(core.points)

    @property
    def takes_every_tick(self) -> bool:
        """Whether every tick is a call of on_tick, or of on_price."""
        return self._takes_all and not self.stopped

    def play_ticks(
        self, core: TickCore, portfolio: BacktestPortfolio, watched: set[str], until: float
    ) -> Sequence[Instruction] | None:
        """Call the strategy with ticks before `until` of symbols that are not watched.

        Returns the instructions of the call that ended it; None: none did.
        """
        clock = portfolio.clock
        try:
            if self._steps is not None:
                held = portfolio.positions
                on_price = self._steps.on_price
                return self._play(core.play_prices, on_price, clock, watched, held, until)
            view, on_tick = self.view_of(portfolio), self.strategy.on_tick
            reprice = portfolio.reprice
            return self._play(core.play_ticks, on_tick, clock, watched, reprice, view, until)
        finally:
            portfolio.forget_worth()

    def play_rest(self, core: BarCore, view: View) -> Sequence[Instruction] | None:
        """Call on_bar with the other bars of a moment; returns what `play_bars` does."""
        return self._play(core.play_rest, self.strategy.on_bar, view)

    def _play(
        self, play: Callable[..., Any], method: Callable[..., Any], *arguments: Any
    ) -> Sequence[Instruction] | None:
        try:
            returned = play(self, method, *arguments)
            if returned is None:
                return None
            if _is_one_signal(returned):
                self.returned, self.errors_in_a_row = self.calls, 0
                return cast(Sequence[Instruction], returned)
            result = check_returned(method, returned)
        except (Exception, SystemExit) as raised:
            if self.calls == self.returned:  # not of the strategy
                raise
            result = self._raised(raised)
        self.count_call(result.error)
        return result.instructions

    def on_bars(self, bars: Iterator[Bar], view: View) -> Sequence[Instruction]:
        """Handle expected bars of one time, up to one with instructions, which are returned.

        Empty: there are no more bars. It does what `on_bar` does with each of them.
        """
        if self._bars is None or not self.is_ready:
            return self._on_each(bars, view)
        on_bar, expected = self.strategy.on_bar, self._bars.expected
        for bar in bars:
            expected[bar[0]].end += 1
            self.calls += 1
            try:
                returned = on_bar(bar, view)
                if not returned:
                    self.returned, self.errors_in_a_row = self.calls, 0
                    continue
                result = check_returned(on_bar, returned)
            except (Exception, SystemExit) as raised:  # noqa: BLE001 - a strategy may raise anything
                result = self._raised(raised)
            self.count_call(result.error)
            if found := result.instructions:
                return found
            if self.stopped:
                return self._on_each(bars, view)
        return ()

    def _on_each(self, bars: Iterator[Bar], view: View) -> Sequence[Instruction]:
        for bar in bars:
            if self._add(bar, ()) and (found := self.call(self.strategy.on_bar, bar, view)):
                return found
        return ()

    def _add(self, bar: Bar, values: tuple[float, ...]) -> bool:
        """Take a bar; return whether on_bar is called with it."""
        is_ready = not self._has_warm_up or self._warm_up.add(bar)
        if self._bars is not None:
            self._bars.add(bar, values)
        return is_ready and self._has_on_bar and not self.stopped

    def on_timer(self, at: float, portfolio: BacktestPortfolio) -> Sequence[Instruction]:
        """Return the signals of the timer, which is due, before an event at this time."""
        interval = self.strategy.timer_s or math.inf
        self.timer_due = (math.floor(at / interval) + 1) * interval
        if self.stopped or not self.is_warm:
            return ()
        return self.call(self.strategy.on_timer, self.view_of(portfolio))

    def call(
        self, method: Callable[..., Iterable[Instruction] | None], *arguments: Any
    ) -> Sequence[Instruction]:
        """Call the strategy as live: count an error, and disable it after many in a row."""
        self.calls += 1
        try:
            returned = method(*arguments)
            if not returned:
                self.returned, self.errors_in_a_row = self.calls, 0
                return ()
            result = check_returned(method, returned)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - a strategy may raise anything
            result = self._raised(raised)
        self.count_call(result.error)
        return result.instructions

    def _raised(self, error: BaseException) -> CallResult:
        return CallResult((), CallError.raised(error, self.strategy))

    def count_call(self, error: CallError | None) -> None:
        """Note the end of a call."""
        self.returned = self.calls
        if error is None:
            self.errors_in_a_row = 0
        else:
            self.on_error(error)

    def on_error(self, error: CallError, after_success: bool = False) -> None:
        self.errors += 1
        self.errors_in_a_row = 1 if after_success else self.errors_in_a_row + 1
        if due := telemetry.log_every(ERROR_LOG_INTERVAL_S, f"backtest {error.event} {self.key}"):
            log.error(error.event, strategy=self.key, error=error.error, where=error.where, **due)
        if self.errors_in_a_row >= MAX_ERRORS_IN_A_ROW:
            self.stopped = f"{self.errors_in_a_row} errors in a row: {error}"

    def on_success(self, calls: int) -> None:
        """Note calls without an error that a compiled scan made."""
        if calls:
            self.errors_in_a_row = 0


def _is_one_signal(returned: Any) -> bool:
    """Return whether a call returned a sequence of one signal, which needs no check."""
    kind = type(returned)
    return (kind is tuple or kind is list) and len(returned) == 1 and type(returned[0]) is Signal
