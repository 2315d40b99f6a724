"""Bars that nothing waits for are not followed inside, and nobody can tell."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qts.backtest.bar_tape as bar_tapes
from qts.backtest import BarTape, run_backtest
from qts.backtest.bar_tape_player import BarTapePlayer
from qts.backtest.order_updates import OrderUpdates
from qts.backtest.portfolio import BacktestPortfolio
from qts.domain import Bar, Fill, Tick, Timeframe
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
        assert view.equity == view.account.cash + value
        return super().on_bar(bar, view)


class WithoutTimer(OnBars, key="random_orders"):
    timer_s = None


class WithFills(WithoutTimer, key="random_orders"):
    def on_fill(self, fill: Fill, view: View) -> Iterable[Instruction]:
        self.seen.append((fill, view.now, view.equity))
        return self.decide(view)


class WithTicks(WithoutTimer, key="random_orders"):
    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        self.seen.append((tick, view.equity))
        return ()


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


KINDS = (OnBars, WithoutTimer, WithFills, WithTicks, WithLongerBars, WithIndicators)


def made_tape(seed: int, symbols: Sequence[str] = SYMBOLS[1:4]) -> BarTape:
    chance = random.Random(seed)  # noqa: S311 - a walk, not a secret
    closes = minute_closes(80, chance.choice((1_794_787_200.0, 1_794_837_600.0)))  # over midnight
    bars = {}
    for symbol in symbols:
        kept = zip(closes, made_bars(chance, 80, chance.uniform(3_000, 60_000)), strict=True)
        bars[symbol] = [each for each in kept if chance.random() < 0.9]
    return bar_tape(bars, Timeframe.M1)


def run(kinds: Sequence[type[OnBars]], seed: int, config: Any, events: int) -> Any:
    strategies = []
    for number, kind in enumerate(kinds):
        kind.seed = seed + number
        strategies.append(kind.from_params(name=f"{kind.__name__}{number}"))
    with patch.object(bar_tapes, "EVENTS", events):
        result = run_backtest(strategies, made_tape(seed), config)
    assert not any(each.errors for each in result.strategies)
    return outcome(result), [each.seen for each in strategies]


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

    with (
        patch.multiple(BarTapePlayer, __init__=init, _open=opens, _close=closes),
        patch.object(BacktestPortfolio, "keep_ticks", skips),
    ):
        return run(kinds, seed, config, ALL_AT_ONCE)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
    config=CONFIGS,
    events=st.sampled_from((5, 60, ALL_AT_ONCE)),
)
def test_quiet_bars_change_nothing(
    seed: int, kinds: list[type[OnBars]], config: Any, events: int
) -> None:
    assert run(kinds, seed, config, events) == run_every_bar(kinds, seed, config)


@pytest.mark.parametrize("kind", KINDS)
def test_these_strategies_trade(kind: type[OnBars]) -> None:
    (fills, *_), (seen,) = run([kind], 3, None, ALL_AT_ONCE)
    assert len(fills) > 5
    assert len(seen) > 50
