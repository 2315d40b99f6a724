"""Bars that nothing waits for are not followed inside, and nobody can tell."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from copy import deepcopy
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import qts.backtest.bar_tape as bar_tapes
from qts.backtest import BacktestConfig, BarTape, run_backtest
from qts.backtest.bar_tape_player import BarTapePlayer
from qts.backtest.outcomes import OrderUpdates
from qts.backtest.portfolio import BacktestPortfolio
from qts.backtest.strategy_run import StrategyRun
from qts.domain import Bar, Fill, Tick, Timeframe
from qts.pipeline import PortfolioState, account_of
from qts.strategies import Instruction, NoParams, View
from tests.backtest.bars import bar_tape, minute_closes
from tests.backtest.tapes import SYMBOLS
from tests.backtest.test_bar_laws import made_bars
from tests.backtest.test_compiled_scan import CONFIGS
from tests.backtest.test_quiet_ticks import RandomOrders, outcome

ALL_AT_ONCE = 100_000


class Everything(set[str]):
    """Set that has every symbol: each bar is followed on its way from open to close."""

    def __contains__(self, _symbol: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


class OnBars(RandomOrders, key="random_orders"):
    """Checks each view against the bars that came and against what the account is worth."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.came: dict[str, list[Bar]] = {}

    def on_bar(self, bar: Bar, view: View) -> Iterable[Instruction]:
        came = self.came.setdefault(bar.symbol, [])
        came.append(bar)
        assert bar.at == view.now.timestamp()
        assert view.bars(bar.symbol, "1m", 3).tolist() == [tuple(each[2:]) for each in came[-3:]]
        assert view.ticks[bar.symbol].price == bar.close
        held = view.positions.items()
        prices = {symbol: Decimal(str(view.ticks[symbol].price)) for symbol, _ in held}
        value = sum((prices[symbol] * each.quantity for symbol, each in held), Decimal(0))
        assert str(view.equity) == str(view.account.cash + value)
        assert view.account == account_of(PortfolioState(view.account.cash, view.positions))
        return super().on_bar(bar, view)


class WithoutTimer(OnBars, key="random_orders"):
    timer_s: float | None = None


class WithFills(WithoutTimer, key="random_orders"):
    def on_fill(self, fill: Fill, view: View) -> Iterable[Instruction]:
        self.seen.append((fill, view.now, view.equity))
        return self.decide(view)


class WithTicks(WithoutTimer, key="random_orders"):
    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        self.seen.append((tick, view.equity))
        return ()


class MostlyQuiet(WithoutTimer, key="random_orders"):
    """Returns nothing from most calls, in several spellings; makes mistakes, some in a row."""

    def on_bar(self, bar: Bar, view: View) -> Iterable[Instruction]:
        found = list(super().on_bar(bar, view))
        if bar.at % 3600 > 3000:
            raise ValueError("the last minutes of an hour")
        match self.random.randrange(30):
            case 0:
                return found
            case 1:
                raise SystemExit(1)
            case 2:
                return [*found, "no signal"]  # type: ignore[list-item]
            case 3:
                return np.zeros(2)  # has no truth
            case 4:
                return (1 // (bar.at < 0) for _ in found)  # type: ignore[misc]  # raises later
            case number:
                return (None, (), [], {}, 0)[number % 5]  # type: ignore[return-value]


class QuietWithTimer(MostlyQuiet, key="random_orders"):
    timer_s = 100.0


class Keeps(WithoutTimer, key="random_orders"):
    """Reads views now and then, and keeps some of them, and bars, which stay as they were."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.kept: list[tuple[Any, str]] = []

    def on_bar(self, bar: Bar, view: View) -> Iterable[Instruction]:
        match self.random.randrange(16):
            case 0:
                read = [view.bars(symbol, "1m", 4).tolist() for symbol in SYMBOLS]
                self.seen.append((bar.at, read))
            case 1:
                ticks = {name: (tick.price, tick.at) for name, tick in view.ticks.items()}
                self.seen.append((view.now, ticks, len(view.ticks)))
            case 2 | 3:
                self.kept.append((view, shown(view)))
            case 4 | 5:
                self.kept.append((bar, shown(bar)))
            case 6:
                self.kept.append((deepcopy(view), shown(view)))
            case 7:
                self.seen.append((str(view.equity), view.orders, dict(view.positions)))
                return self.decide(view)
            case 8:
                raise ValueError(bar.symbol)
        return ()


def shown(kept: View | Bar) -> str:
    """Return what of a view or a bar stays as it is; ticks and bars of a view are the latest."""
    if isinstance(kept, Bar):
        return repr(kept)
    return repr((kept.now, kept.equity, kept.positions, kept.account, kept.orders))


class WithLongerBars(OnBars, key="random_orders"):
    timeframes = ("1m", "5m", "1d")

    def on_bar(self, bar: Bar, view: View) -> Iterable[Instruction]:
        if bar.timeframe is Timeframe.M1:
            return super().on_bar(bar, view)
        self.seen.append((bar, view.bars(bar.symbol, bar.timeframe, 2).tolist()))
        return ()


class WithIndicators(OnBars, key="random_orders"):
    indicators = ("ema(3)",)
    warm_up = 0

    def decide(self, view: View) -> Iterable[Instruction]:
        self.seen.append(str([view.indicator(symbol, "1m", "ema(3)") for symbol in SYMBOLS]))
        return super().decide(view)


FAULTY = (MostlyQuiet, QuietWithTimer, Keeps)
KINDS = (OnBars, WithoutTimer, WithFills, WithTicks, WithLongerBars, WithIndicators, *FAULTY)


def made_tape(seed: int, symbols: Sequence[str] = SYMBOLS[1:4]) -> BarTape:
    chance = random.Random(seed)  # noqa: S311 - a walk, not a secret
    closes = minute_closes(80, chance.choice((1_794_787_200.0, 1_794_837_600.0)))  # over midnight
    bars = {}
    for symbol in symbols:
        late = chance.choice((0, 0, 20))  # than bars of other symbols
        times = [at + late for at in closes]
        kept = zip(times, made_bars(chance, 80, chance.uniform(3_000, 60_000)), strict=True)
        bars[symbol] = [each for each in kept if chance.random() < 0.9]
    return bar_tape(bars, Timeframe.M1)


def run(kinds: Sequence[type[OnBars]], seed: int, config: Any, events: int) -> Any:
    strategies = []
    for number, kind in enumerate(kinds):
        kind.seed = seed + number
        strategies.append(kind.from_params(name=f"{kind.__name__}{number}"))
    with patch.object(bar_tapes, "EVENTS", events):
        result = run_backtest(strategies, made_tape(seed), config)
    for kind, each, strategy in zip(kinds, result.strategies, strategies, strict=True):
        assert kind in FAULTY or not each.errors
        if isinstance(strategy, Keeps):
            assert all(shown(kept) == before for kept, before in strategy.kept)
    return outcome(result), result.strategies, [each.seen for each in strategies]


def run_every_bar(kinds: Sequence[type[OnBars]], seed: int, config: Any) -> Any:
    """Run with every bar followed; an open or a close is an event only where something waits."""
    create, play_open = BarTapePlayer.__init__, BarTapePlayer._open
    follow, handle = BarTapePlayer._close, OrderUpdates.handle

    def init(self: BarTapePlayer, engine: Any, tape: BarTape) -> None:
        engine.watched = Everything()
        create(self, engine, tape)

    def is_watched(self: BarTapePlayer, row: int) -> bool:
        symbol = self._tape.symbols[self._tape.rows["symbol"][row]]
        return set.__contains__(self._engine.watched, symbol)

    def opens(self: BarTapePlayer, row: int, at: float) -> None:
        if is_watched(self, row):
            play_open(self, row, at)

    def closes(self: BarTapePlayer, row: int, close: Tick) -> None:
        handled = handle if is_watched(self, row) else lambda _updates: None
        with patch.object(OrderUpdates, "handle", handled):
            follow(self, row, close)

    def skips(_self: BacktestPortfolio, _ticks: object) -> None:
        raise AssertionError("a bar was not followed")

    def calls(self: BarTapePlayer, run: StrategyRun, bars: Iterable[Bar], at: float) -> None:
        for bar in bars:
            self._engine.on_bar(run, bar, (), at)

    def rest(self: BarTapePlayer, run: StrategyRun, at: float) -> None:
        calls(self, run, self._calls.bars(), at)

    def plays(_calls: object, *_arguments: object) -> None:
        raise AssertionError("bars were not handled one by one")

    with (
        patch.multiple(BarTapePlayer, __init__=init, _open=opens, _close=closes),
        patch.multiple(BarTapePlayer, _on_bars=calls, _play_rest=rest),
        patch.object(StrategyRun, "play_bars", plays),
        patch.object(BacktestPortfolio, "keep_ticks", skips),
    ):
        return run(kinds, seed, config, ALL_AT_ONCE)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
    config=CONFIGS,
    events=st.sampled_from((5, 60, ALL_AT_ONCE)),
)
@example(seed=1, kinds=[MostlyQuiet], config=BacktestConfig(use_stops=False), events=60)
@example(seed=2, kinds=[QuietWithTimer], config=BacktestConfig(use_stops=False), events=5)
@example(seed=4, kinds=[Keeps], config=BacktestConfig(use_stops=False), events=ALL_AT_ONCE)
@example(seed=3, kinds=[MostlyQuiet], config=BacktestConfig(), events=ALL_AT_ONCE)
def test_quiet_bars_change_nothing(
    seed: int, kinds: list[type[OnBars]], config: Any, events: int
) -> None:
    assert run(kinds, seed, config, events) == run_every_bar(kinds, seed, config)


@pytest.mark.parametrize("kind", KINDS)
def test_these_strategies_trade(kind: type[OnBars]) -> None:
    (fills, *_), _, (seen,) = run([kind], 3, None, ALL_AT_ONCE)
    assert len(fills) > (1 if kind in FAULTY else 5)
    assert len(seen) > 50


def test_these_strategies_make_mistakes_and_one_is_disabled() -> None:
    _, (quiet,), _ = run([MostlyQuiet], 3, None, ALL_AT_ONCE)
    _, (timed,), _ = run([QuietWithTimer], 3, None, ALL_AT_ONCE)
    assert min(quiet.errors, timed.errors) > 25
    assert quiet.stopped.startswith("20 errors in a row: ValueError")
    assert not timed.stopped  # its timer returns between them


class EverySecond(WithoutTimer, key="random_orders"):
    """Raises with every second bar, and returns nothing with the others."""

    def on_bar(self, bar: Bar, _view: View) -> Iterable[Instruction]:
        self.seen.append(bar)
        if len(self.seen) % 2:
            raise ValueError(bar.at)
        return ()


def test_errors_between_calls_that_return_are_not_in_a_row() -> None:
    strategy = EverySecond(NoParams())
    (part,) = run_backtest(strategy, made_tape(3, SYMBOLS[1:2])).strategies
    assert part.errors == (len(strategy.seen) + 1) // 2 > 25
    assert not part.stopped


@pytest.mark.parametrize(("kind", "is_called"), [(MostlyQuiet, True), (WithTicks, False)])
def test_a_strategy_of_bars_alone_is_called_by_the_core(
    kind: type[OnBars], is_called: bool
) -> None:
    with patch.object(StrategyRun, "play_bars", autospec=True, return_value=None) as play:
        run([kind], 3, None, ALL_AT_ONCE)
    assert play.called is is_called
