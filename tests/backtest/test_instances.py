"""Instances of one class in a backtest: each keeps to its own capital and limits."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts import run_backtest
from qts.backtest import BacktestConfig
from qts.backtest.engine import BacktestEngine
from qts.backtest.report import figures
from qts.backtest.sources import default_instruments
from qts.domain import IntentType, Side, Tick
from qts.pipeline import StrategyConfig, compute_exposure
from qts.risk import ApprovedOrder, RiskLimitsConfig, StrategyLimitsConfig, StrategyStopsConfig
from qts.strategies import NoParams, Signal, Strategy, View
from tests.backtest.tapes import SYMBOLS, prices, tape, walk

HERE = f"{__name__}:Greedy"
ONCE = f"{__name__}:Once"
WIDE = RiskLimitsConfig(
    max_order_value=10**9,
    max_symbol_exposure=1,
    max_exposure=1,
    orders_per_day=10**6,
    orders_per_minute=10**6,
    daily_loss=1,
)


class Once(Strategy[NoParams]):
    """Buys each symbol once."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.bought: set[str] = set()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if tick.symbol not in self.bought and not view.quantity(tick.symbol):
            self.bought.add(tick.symbol)
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, quantity=Decimal(100))


class Params(msgspec.Struct, frozen=True):
    every: int = 3
    value: float | None = None


class Greedy(Strategy[Params]):
    """Buys on every tick, and sells all of a symbol every few."""

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.ticks = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.ticks += 1
        if view.quantity(tick.symbol) and self.ticks % self.params.every == 0:
            kind = IntentType.EXIT_SIGNAL
            yield Signal(symbol=tick.symbol, side=Side.SELL, at=tick.at, intent_type=kind)
        else:
            value = self.params.value
            size = None if value is None else Decimal(str(value))
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, value=size)


def config_of(*instances: StrategyConfig, **more: Any) -> BacktestConfig:
    return BacktestConfig(limits=WIDE, instances=instances, **more)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    capitals=st.tuples(*[st.integers(100_000, 20_000_000)] * 2),
    every=st.integers(2, 9),
)
def test_an_instance_never_holds_more_than_its_capital(
    seed: int, capitals: tuple[int, int], every: int
) -> None:
    instances = [
        StrategyConfig(
            source=HERE,
            name=name,
            symbols=symbols,
            capital=capital,
            limits=StrategyLimitsConfig(max_open_symbols=2),
            parameters={"every": every},
        )
        for name, capital, symbols in zip(
            ("one", "two"), capitals, (SYMBOLS[:3], SYMBOLS[1:]), strict=True
        )
    ]
    strategies = [each.create() for each in instances]
    engine = BacktestEngine(strategies, config_of(*instances), default_instruments())
    submit, checked = engine.manager.submit, 0

    def submit_and_check(approved: ApprovedOrder) -> str:
        nonlocal checked
        refusal = submit(approved)
        for each in instances:
            if approved.proposal.strategy_key == each.name and approved.proposal.side is Side.BUY:
                state = engine.manager.account_state()
                used = compute_exposure("", state, engine.portfolio, each.name)
                assert used.strategy_value <= (each.capital or 0)
                assert used.strategy_symbols <= 2
                checked += 1
        return refusal

    engine.manager.submit = submit_and_check  # type: ignore[method-assign]
    ticks = [each for each in walk(seed, 60) if 0 < each.price < float("inf")]
    engine.start(ticks[0].at)
    for each in ticks:
        if each.at >= engine.due:
            engine.on_timer(each.at)
        engine.on_tick(each)
    assert checked


@pytest.mark.parametrize(
    ("capital", "limits", "code"),
    [
        (300_000, StrategyLimitsConfig(), "nothing left within the limits"),
        (None, StrategyLimitsConfig(orders_per_day=4), "G_STRATEGY_LIMIT"),
        (None, StrategyLimitsConfig(max_open_symbols=1), "G_STRATEGY_LIMIT"),
    ],
)
def test_what_an_instance_may_not_do_is_refused_to_it_alone(
    capital: int | None, limits: StrategyLimitsConfig, code: str
) -> None:
    tight = StrategyConfig(
        source=HERE,
        name="tight",
        symbols=SYMBOLS[:3],
        capital=capital,
        limits=limits,
        parameters={"value": 250_000},
    )
    free = StrategyConfig(
        source=HERE, name="free", symbols=SYMBOLS[3:], parameters={"value": 250_000}
    )
    both = [each.create() for each in (tight, free)]
    result = run_backtest(both, tape(walk(7)), config_of(tight, free))
    found = {each.key: each for each in result.strategies}
    assert found["tight"].refusals[code]
    assert code not in found["free"].refusals
    if limits.orders_per_day:
        mine = [each for each in result.proposals if each.strategy_key == "tight"]
        assert sum(not each.intent_type.is_exit for each in mine) <= 4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_the_instances_earned_is_what_the_account_earned(seed: int) -> None:
    instances = [
        StrategyConfig(source=HERE, name=name, symbols=symbols, capital=5_000_000)
        for name, symbols in (("one", SYMBOLS[:2]), ("two", SYMBOLS[2:]))
    ]
    both = [each.create() for each in instances]
    result = run_backtest(both, tape(walk(seed)), config_of(*instances))
    points = result.points
    total = sum(each.realised + each.unrealised for each in result.strategies)
    assert total == pytest.approx(points[-1].equity - points[0].equity, abs=0.01)
    assert sum(each.fees for each in result.strategies) == pytest.approx(result.performance.costs)
    assert sum(each.exposure for each in result.strategies) == pytest.approx(points[-1].invested)
    assert result.refusals or result.trips  # stops sold something: their fills have owners too
    text = " ".join(value for _, value in figures(result))
    assert all(
        f"{each.signals:,} signals, {each.orders:,} orders" in text for each in result.strategies
    )


def test_the_stops_of_an_instance_hold_for_its_positions_alone() -> None:
    """A fall of 4 % closes what the settings of all watch, and not what has wider stops."""
    wide = StrategyStopsConfig(mae_half=0.08, mae_full=0.09, trail_arm=0.5, max_hold_s=0)
    instances = [
        StrategyConfig(source=ONCE, name="usual", symbols=("005930",)),
        StrategyConfig(source=ONCE, name="wide", symbols=("000660",), stops=wide),
    ]
    fall = [10_000.0] * 5 + [10_000.0 - 50 * step for step in range(9)] + [9_600.0] * 10
    ticks = sorted(
        (*prices(fall, "005930"), *prices(fall, "000660")), key=lambda tick: (tick.at, tick.symbol)
    )
    both = [each.create() for each in instances]
    result = run_backtest(both, tape(ticks), config_of(*instances))
    exits = [each for each in result.proposals if each.intent_type.is_exit]
    assert {each.symbol for each in exits} == {"005930"}
    assert [trade.symbol for trade in result.still_open] == ["000660"]
    found = {each.key: each for each in result.strategies}
    assert (found["usual"].exposure, found["usual"].realised < 0) == (0, True)
    assert found["wide"].unrealised < 0 < found["wide"].exposure
