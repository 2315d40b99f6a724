"""Ticks that nothing waits for are handled by the core, and nobody can tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import qts.backtest.tape as tapes
from qts._native import TickCalls
from qts.backtest import BacktestConfig, Chunk, run_backtest
from qts.backtest.tick_players import GenericPlayer
from qts.domain import Tick
from qts.strategies import Instruction, MovingAverageSwing, NoParams, Signal, Strategy, View
from tests.backtest.tapes import SYMBOLS, tape, walk
from tests.backtest.test_compiled_scan import CONFIGS
from tests.backtest.test_quiet_ticks import RandomOrders, outcome

CHUNKS = (7, 300, 1_000_000)


class OnTicks(RandomOrders, key="random_orders"):
    """Trades at some ticks, reads and keeps ticks and views at others, and raises."""

    timeframes: Sequence[str] = ()
    timer_s: float | None = None

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.kept: list[tuple[Any, str]] = []

    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        match self.random.randrange(24):
            case 0:
                return self.decide(view)
            case 1:
                self.seen.append((view.now, sorted(view.ticks.items()), str(view.equity)))
            case 2:
                self.kept += [(tick, shown(tick)), (view, shown(view))]
            case 3:
                self.kept += [(deepcopy(tick), shown(tick)), (deepcopy(view), shown(view))]
            case 4:
                raise ValueError(tick.symbol)
            case 5:
                self.kept.append((tick, shown(tick)))
                return [tick]  # type: ignore[list-item]  # no signal
            case 6:
                return np.zeros(2)  # has no truth
            case number:
                self.check_values(view)
                return (None, (), [], {}, 0)[number % 5]  # type: ignore[return-value]
        return ()

    @staticmethod
    def check_values(view: View) -> None:
        prices = {name: Decimal(str(view.ticks[name].price)) for name in view.positions}
        value = sum((prices[name] * view.quantity(name) for name in prices), Decimal(0))
        assert str(view.equity) == str(view.account.cash + value)


class Blind(OnTicks, key="random_orders"):
    """Reads no ticks of the view, but at random ones."""

    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        self.seen.append((tick, view.now, str(view.equity)))
        return self.decide(view) if self.random.random() < 0.1 else ()


class OfSomeSymbols(OnTicks, key="random_orders"):
    symbols = SYMBOLS[:2]


class Evaluates(Blind, key="random_orders"):
    def evaluate(self, view: View) -> Iterable[Instruction]:
        self.seen.append((view.now, sorted(view.ticks.items())))
        return ()


class Swing(MovingAverageSwing, key="swing"):
    """Compares what its step is called with; has signals of its own."""

    seed = 0

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.seen: list[Any] = []
        self.kept: list[tuple[Any, str]] = []

    def on_price(self, tick: Tick, position: float) -> tuple[Signal, ...]:
        self.seen.append((repr(tick), position))
        if tick.volume == 13:
            raise ValueError(tick.at)
        if tick.volume % 5 == 0:
            self.kept.append((tick, shown(tick)))
        return super().on_price(tick, position)

    def signals(self, direction: int, tick: Tick, position: float) -> tuple[Signal, ...]:
        self.seen.append(direction)
        return super().signals(direction, tick, position)


def shown(kept: View | Tick) -> str:
    """Return what of a tick or a view stays as it is."""
    if isinstance(kept, Tick):
        return repr(kept)
    return repr((kept.now, kept.equity, kept.positions, kept.account, kept.orders))


KINDS: tuple[Any, ...] = (OnTicks, Blind, OfSomeSymbols, Evaluates, Swing)
FAST = {"fast": 2, "slow": 6, "margin": 0}


def run(kinds: Sequence[Any], seed: int, config: Any, rows: int) -> Any:
    strategies: list[Any] = []
    for number, kind in enumerate(kinds):
        kind.seed = seed + number
        params = FAST if kind is Swing else {}
        strategies.append(kind.from_params(params, name=f"{kind.__name__}{number}"))
    with patch.object(tapes, "CHUNK", rows):
        result = run_backtest(strategies, tape(walk(seed, 200, step=0.002)), config, way="generic")
    for strategy in strategies:
        assert all(shown(kept) == before for kept, before in strategy.kept)
    return outcome(result), result.strategies, [each.seen for each in strategies]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
    config=CONFIGS,
    rows=st.sampled_from(CHUNKS),
)
@example(seed=1, kinds=[OnTicks], config=BacktestConfig(use_stops=False), rows=300)
@example(seed=2, kinds=[Swing], config=BacktestConfig(use_stops=False), rows=7)
@example(seed=3, kinds=[Evaluates], config=BacktestConfig(), rows=1_000_000)
def test_ticks_of_the_core_change_nothing(
    seed: int, kinds: list[Any], config: Any, rows: int
) -> None:
    found = run(kinds, seed, config, rows)
    with patch.object(GenericPlayer, "play", GenericPlayer._play_each):
        assert run(kinds, seed, config, rows) == found


@pytest.mark.parametrize("kind", KINDS)
def test_these_strategies_trade(kind: Any) -> None:
    (fills, *_), _, (seen,) = run([kind], 3, None, 300)
    assert len(fills) > 5
    assert len(seen) > 20


@pytest.mark.parametrize(("kind", "by_core"), [(Blind, True), (OfSomeSymbols, False)])
def test_a_strategy_of_all_symbols_is_called_by_the_core(kind: Any, by_core: bool) -> None:
    with patch("qts.backtest.strategy_run.StrategyRun.call", return_value=()):
        _, _, (seen,) = run([kind], 3, BacktestConfig(use_stops=False), 300)
    assert bool(seen) is by_core


def chunk_of(rows: int, symbol: int = 0) -> Chunk:
    return Chunk(np.full(rows, symbol, np.int32), *(np.ones(rows) for _ in range(5)))


def test_the_core_makes_the_ticks_of_a_chunk() -> None:
    calls = TickCalls(Tick, {})
    prices, bids = np.array([3.0, 0.0, 5.0, 7.0]), np.array([0.0, 1.0, 4.0, 0.0])
    calls.begin(*chunk_of(4)._replace(price=prices, bid=bids), ["KRW-A"])
    assert (calls.left, calls.symbol, calls.at) == (4, "KRW-A", 1.0)
    ticks = [calls.take() for _ in range(4)]
    name, ones = "KRW-A", (1.0, 1.0)
    first, third = Tick(name, 3.0, 1.0, 3.0, *ones), Tick(name, 5.0, 1.0, 4.0, *ones)
    assert ticks == [first, None, third, Tick(name, 7.0, 1.0, 7.0, *ones)]
    assert calls.left == 0
    for read in (calls.take, lambda: calls.symbol, lambda: calls.at):
        with pytest.raises(IndexError, match="no ticks are left"):
            read()


def test_the_core_refuses_a_chunk_that_does_not_fit() -> None:
    calls = TickCalls(Tick, {})
    with pytest.raises(ValueError, match="different lengths"):
        calls.begin(*chunk_of(2)._replace(at=np.zeros(3)), ["KRW-A"])
    for symbol in (-1, 1):
        with pytest.raises(IndexError, match="no such symbol"):
            calls.begin(*chunk_of(2, symbol), ["KRW-A"])


def test_a_strategy_may_forget_its_tick_while_it_reads_ticks() -> None:
    class Forgets(Strategy[NoParams], key="forgets"):
        def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
            symbol, at = tick.symbol, tick.at
            del tick
            assert view.ticks[symbol].at == at
            return ()

    result = run_backtest(Forgets(NoParams()), tape(walk(1, 50)), way="generic")
    assert not result.strategies[0].errors
