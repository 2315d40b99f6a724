"""Ticks that nothing waits for are not handled one by one, and nobody can tell."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import qts.backtest.tape as tapes
from qts.backtest import BacktestConfig, BacktestResult, run_backtest
from qts.brokers import PaperConfig
from qts.domain import Bar, IntentType, OrderSnapshot, OrderType, Side, Tick, TimeInForce
from qts.risk import RiskLimitsConfig
from qts.strategies import Cancel, Instruction, NoParams, Signal, Strategy, View
from tests.backtest.tapes import SYMBOLS, tape, walk
from tests.backtest.test_compiled_scan import CONFIGS


class RandomOrders(Strategy[NoParams], key="random_orders"):
    """Market, limit and stop orders at random closes, of any symbol; cancels some of them."""

    timeframes: Sequence[str] = ("1m",)
    timer_s: float | None = 7.0
    seed = 0

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.random = random.Random(self.seed)  # noqa: S311 - reproducible on purpose
        self.seen: list[Any] = []

    def on_bar(self, bar: Bar, view: View) -> Iterable[Instruction]:
        self.seen.append((bar, view.equity, sorted(view.ticks.items()), view.orders))
        return self.decide(view)

    def on_timer(self, view: View) -> Iterable[Instruction]:
        self.seen.append((view.now, view.equity))
        return self.decide(view)

    def on_order(self, order: OrderSnapshot, view: View) -> Iterable[Instruction]:
        self.seen.append((order, view.now))
        return ()

    def decide(self, view: View) -> Iterable[Instruction]:
        if view.orders and self.random.random() < 0.2:
            yield Cancel(self.random.choice(view.orders))
        symbol = self.random.choice(SYMBOLS)
        last = view.ticks.get(symbol)
        if last is None or self.random.random() < 0.3:
            return
        at, price = view.now.timestamp(), Decimal(round(last.price / 10) * 10)
        if view.quantity(symbol) > 0:
            yield Signal(symbol=symbol, side=Side.SELL, at=at, intent_type=IntentType.EXIT_SIGNAL)
            return
        bought = Signal(symbol=symbol, side=Side.BUY, at=at)
        lifetime = self.random.choice((TimeInForce.DAY, TimeInForce.IOC, 5.0))
        match self.random.randrange(3):
            case 0:
                yield bought
            case 1:
                limit = price - 10
                yield replace(bought, type=OrderType.LIMIT, price=limit, time_in_force=lifetime)
            case _:
                yield replace(bought, trigger=price + 10, time_in_force=5.0)


class WithTicks(RandomOrders, key="random_orders"):
    """Has an on_tick, so that every tick is handled."""

    def on_tick(self, _tick: Tick, _view: View) -> Iterable[Instruction]:
        return ()


def outcome(result: BacktestResult) -> tuple[Any, ...]:
    return (result.fills, result.trades, result.points, result.refusals, result.expired,
            result.proposals, result.trips)  # fmt: skip


# A stop order is triggered while another order is in flight, and is refused later.
WAITS = BacktestConfig(
    use_stops=False,
    limits=RiskLimitsConfig(max_open_symbols=1, orders_per_day=5, orders_per_minute=1),
    paper=PaperConfig(latency_ms=0.0, latency_jitter_ms=800.0),
)


@example(seed=5326, config=WAITS, rows=7)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32), config=CONFIGS, rows=st.sampled_from((7, 300, 1_000_000)))
def test_a_strategy_without_on_tick_sees_and_does_the_same(
    seed: int, config: Any, rows: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible on purpose
    ticks = [each for each in walk(seed, 300, step=0.002) if chance.random() < 0.3]
    found = []
    for kind in (RandomOrders, WithTicks):
        kind.seed = seed
        strategy = kind(NoParams())
        with patch.object(tapes, "CHUNK", rows):
            found.append((outcome(run_backtest(strategy, tape(ticks), config)), strategy.seen))
    assert found[0] == found[1]


def test_these_strategies_trade() -> None:
    RandomOrders.seed = 1
    result = run_backtest(RandomOrders(NoParams()), tape(walk(1, 400, step=0.002)))
    assert len(result.fills) > 5
    assert result.expired
    assert not result.strategies[0].errors
