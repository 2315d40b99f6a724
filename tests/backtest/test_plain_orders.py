"""Orders of plain signals that skip the steps leave no trace: the result is that of the steps."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import qts.backtest.bar_tape as bar_tapes
import qts.backtest.tape as tapes
from qts.backtest import BacktestConfig, BacktestResult, BarTape, run_backtest
from qts.backtest.order_manager import BY_STRATEGY, DUPLICATE
from qts.backtest.plain_orders import PlainOrders
from qts.backtest.strategy_run import StrategyRun
from qts.brokers import FeesConfig
from qts.domain import (
    Bar,
    Fill,
    Instruments,
    IntentType,
    OrderType,
    Side,
    Tick,
    Timeframe,
    TimeInForce,
    assumed_instrument,
    krx_instrument,
)
from qts.feed import FileRows
from qts.pipeline import SignalOutcome
from qts.strategies import Cancel, Instruction, NoParams, Signal, Strategy, View
from tests.backtest.bars import MONDAY
from tests.backtest.tapes import BEGIN, SYMBOLS, prices, tape
from tests.backtest.test_compiled_orders import (
    CHANGES,
    CONFIGS,
    FREE,
    WIDE,
    Busy,
    Careful,
    changed,
    content,
    ticks_of,
)

# ruff: noqa: ARG002 - signatures of Strategy

KNOWN = Instruments(
    [krx_instrument("051910", halted=True), krx_instrument("035420", lot=Decimal(7))],
    default=assumed_instrument,
)
EXIT = IntentType.EXIT_SIGNAL
SIZES: tuple[dict[str, Any], ...] = (
    {"quantity": 1},
    {"quantity": 2.5},
    {"quantity": 300},
    {"value": Decimal(50_000)},
    {"share": Decimal("0.05")},
    {"trail": Decimal("0.02")},
)


class Plain(Strategy[NoParams], key="plain"):
    """Mostly plain signals of any symbol, and a few of every other kind."""

    seed, odd = 0, 0.1  # of the signals so many are not plain

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.random = random.Random(self.seed)  # noqa: S311 - reproducible on purpose
        self.seen: list[Any] = []
        self.times: dict[tuple[str, Side], float] = {}  # of the first signal, which is repeated

    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        return self.decide(tick.symbol, tick.at, view)

    def decide(self, symbol: str, at: float, view: View) -> Sequence[Instruction]:
        chance = self.random
        self.seen.append((view.now, view.equity, view.account, dict(view.positions), view.orders))
        if chance.random() < 0.6:
            return ()
        if chance.random() < 0.2:
            symbol = chance.choice(SYMBOLS)
        if view.quantity(symbol) > 0:
            signal = Signal(symbol=symbol, side=Side.SELL, at=at, intent_type=EXIT)
        else:
            signal = Signal(symbol=symbol, side=Side.BUY, at=at)
        if chance.random() < 0.3:
            signal = replace(signal, reason="why not")
        if chance.random() < self.odd:
            return self.oddities(signal, view)
        self.times.setdefault((symbol, signal.side), at)
        return (signal,)

    def oddities(self, signal: Signal, view: View) -> Sequence[Instruction]:
        chance, other = self.random, self.random.choice(SYMBOLS)
        last = view.ticks.get(signal.symbol)
        known = last.price if last is not None and 0 < last.price < math.inf else 10.0
        price = Decimal(max(10, round(known / 10) * 10))
        match chance.randrange(10):
            case 0:
                return (replace(signal, **chance.choice(SIZES)),)
            case 1:
                return (signal, Signal(symbol=other, side=Side.BUY, at=signal.at))
            case 2:
                return (replace(signal, type=OrderType.LIMIT, price=price - 10 or price),)
            case 3:
                before = self.times.get((signal.symbol, signal.side), signal.at - 1e-6)
                return (replace(signal, at=before),)
            case 4:
                return (replace(signal, time_in_force=chance.choice((TimeInForce.IOC, 3.0))),)
            case 5:
                return (Signal(symbol=other, side=Side.SELL, at=signal.at, intent_type=EXIT),)
            case 6:
                return tuple(Cancel(each) for each in view.orders)
            case 7:
                lifetime = chance.choice((60.0, TimeInForce.DAY))
                return (replace(signal, trigger=price + 10, time_in_force=lifetime),)
            case 8:
                return (replace(signal, side=signal.side.opposite),)
            case _:
                return (Signal(symbol=signal.symbol, side=Side.BUY, at=signal.at),)


class WithTimer(Plain, key="plain"):
    timer_s: float | None = 7.0

    def on_timer(self, view: View) -> Iterable[Instruction]:
        return self.decide(self.random.choice(SYMBOLS), view.now.timestamp(), view)


class OnMinutes(Plain, key="plain"):
    timeframes: Sequence[str] = ("1m",)
    on_tick = Strategy.on_tick

    def on_bar(self, bar: Bar, view: View) -> Iterable[Instruction]:
        return self.decide(bar.symbol, bar.at, view)


class OnMinutesWithTimer(OnMinutes, key="plain"):
    timer_s: float | None = 100.0

    def on_timer(self, view: View) -> Iterable[Instruction]:
        return self.decide(self.random.choice(SYMBOLS), view.now.timestamp(), view)


class OnLongerBars(OnMinutes, key="plain"):
    timeframes = ("1m", "5m", "1d")


class WithFills(OnMinutes, key="plain"):
    def on_fill(self, fill: Fill, view: View) -> Iterable[Instruction]:
        return self.decide(fill.symbol, view.now.timestamp(), view)


TICK_KINDS = (Plain, WithTimer, OnMinutes, OnMinutesWithTimer)
BAR_KINDS = (OnMinutes, OnMinutesWithTimer, OnLongerBars, WithFills, Plain)


@contextmanager
def counted(*, is_on: bool) -> Iterator[list[bool]]:
    """Collect whether each signal was taken; without the short path, none is."""
    found: list[bool] = []
    original = PlainOrders.take

    def take(orders: PlainOrders, run: StrategyRun, returned: Sequence[Instruction]) -> bool:
        found.append(is_on and original(orders, run, returned))
        return found[-1]

    with patch.object(PlainOrders, "take", take):
        yield found


def run(kinds: Sequence[type[Plain]], seed: int, data: Any, config: Any) -> Any:
    """Return all that a run did, and what its strategies and its readers of signals saw."""
    strategies: list[Any] = []
    for number, kind in enumerate(kinds):
        kind.seed = seed + number
        strategies.append(kind.from_params(name=f"plain{number}"))
    outcomes: list[SignalOutcome] = []
    result = run_backtest(
        strategies,
        data,
        config,
        instruments=KNOWN,
        on_signal=outcomes.append if seed % 2 else None,
        way="generic" if not isinstance(data, BarTape) else "auto",
    )
    seen = [each.seen for each in strategies if isinstance(each, Plain)]
    figures = [repr(each) for each in result.strategies]
    return repr(content(result)), result.digest, figures, repr(outcomes), repr(seen)


def assert_equal_results(
    kinds: Sequence[type[Any]], seed: int, data: Any, config: BacktestConfig
) -> int:
    """Run with and without the short path; return how many orders it took."""
    with counted(is_on=True) as taken:
        one = run(kinds, seed, data, config)
    with counted(is_on=False):
        two = run(kinds, seed, data, config)
    for mine, theirs in zip(one, two, strict=True):
        assert mine == theirs
    return sum(taken)


def bars_of(seed: int, length: int, start: float, step_s: int) -> BarTape:
    """Return a walk of bars: some are missing, some have no volume."""
    rng = random.Random(seed)  # noqa: S311 - a walk, not a secret
    symbols = rng.sample(SYMBOLS, rng.randint(1, len(SYMBOLS)))
    unit = rng.choice((10.0, 10.0, 0.5))
    rows: list[tuple[Any, ...]] = []
    for symbol in symbols:
        last = rng.uniform(1_000, 90_000)
        for number in range(length):
            path = [last := last * math.exp(rng.gauss(0, 0.01)) for _ in range(4)]
            rounded = [max(unit, round(each / unit) * unit) for each in path]
            values = [rounded[0], max(rounded), min(rounded), rounded[3]]
            if rng.random() < 0.9:
                volume = rng.choice((0.0, 7.0, 900.0, 900.0))
                rows.append((symbol, start + step_s * (number + 1), *values, volume))
    names, *columns = zip(*rows, strict=True)
    fields = ("at", "open", "high", "low", "close", "volume")
    table = {name: np.array(each, float) for name, each in zip(fields, columns, strict=True)}
    table["value"] = np.zeros(len(rows))
    timeframe = Timeframe.M1 if step_s == 60 else Timeframe.D1
    return BarTape.of_rows([FileRows(timeframe, np.array(names, object), table)])


TICKS = st.builds(
    ticks_of,
    seed=st.integers(0, 2**32),
    length=st.integers(20, 120),
    gaps=st.sampled_from(
        ((1.0,), (60.0,), (0.0, 0.001, 1.0), (0.0, 60.0, 3600.0), (1.0, 7 * 3600.0))
    ),
    start=st.sampled_from((BEGIN, BEGIN + 15 * 3600 - 40, BEGIN + 0.123456, 100.0)),
)
MINUTES = st.builds(
    bars_of,
    seed=st.integers(0, 2**32),
    length=st.integers(20, 120),
    start=st.sampled_from((MONDAY, MONDAY + 15 * 3600 - 1800)),
    step_s=st.just(60),
)
SEEDS = st.integers(0, 2**32)
# Several purchases wait, and the cash may not be enough for their fees.
SHORT_OF_CASH = st.builds(
    changed,
    st.just(WIDE),
    st.tuples(
        *(
            st.tuples(st.just(name), st.sampled_from(values))
            for name, values in {
                "cash": (Decimal(540_000), Decimal("600000.5"), Decimal(2_000_000)),
                "costs": (FREE, FeesConfig(krx_fee=0.1, upbit_fee=0.1)),
                "limits.max_order_value": (60_000, 200_000, 500_000),
                "paper.latency_ms": (1.0, 1500.0),
                "fill_timeout_s": (0.0, 5.0),
            }.items()
        )
    ).map(list),
)


def test_ticks_give_the_result_of_the_steps() -> None:
    taken: list[int] = []

    @settings(max_examples=60)
    @given(
        ticks=TICKS,
        config=CONFIGS | SHORT_OF_CASH,
        kinds=st.lists(st.sampled_from((*TICK_KINDS, Busy, Careful)), min_size=1, max_size=2),
        seed=SEEDS,
        chunk=st.sampled_from((7, 100_000)),
    )
    def check(ticks: list[Tick], config: Any, kinds: list[Any], seed: int, chunk: int) -> None:
        with patch.object(tapes, "CHUNK", chunk):
            taken.append(assert_equal_results(kinds, seed, tape(ticks), config))

    check()
    assert sum(count > 0 for count in taken) > len(taken) // 4


def test_bars_give_the_result_of_the_steps() -> None:
    taken: list[int] = []

    @settings(max_examples=60)
    @given(
        bars=MINUTES,
        config=CONFIGS | SHORT_OF_CASH,
        kinds=st.lists(st.sampled_from(BAR_KINDS), min_size=1, max_size=2),
        seed=SEEDS,
        events=st.sampled_from((60, 100_000)),
    )
    def check(bars: BarTape, config: Any, kinds: list[Any], seed: int, events: int) -> None:
        with patch.object(bar_tapes, "EVENTS", events):
            taken.append(assert_equal_results(kinds, seed, bars, config))

    check()
    assert sum(count > 0 for count in taken) > len(taken) // 4


@pytest.mark.parametrize(
    "changes",
    [
        *([(name, value)] for name, values in CHANGES.items() for value in values),
        [("cash", Decimal(540_000)), ("costs", FeesConfig(krx_fee=0.1, upbit_fee=0.1))],
    ],
    ids=str,
)
def test_every_setting_has_the_same_effect(changes: list[tuple[str, Any]]) -> None:
    config = changed(WIDE, changes)
    for seed, gaps in ((1, (1.0,)), (2, (0.0, 1.0)), (3, (60.0, 7 * 3600.0))):
        assert_equal_results([Plain], seed, tape(ticks_of(seed, 100, gaps, BEGIN)), config)
        assert_equal_results([OnMinutes], seed, bars_of(seed, 100, MONDAY, 60), config)


class OnDays(OnMinutes, key="plain"):
    timeframes = ("1d",)


def test_orders_wait_over_midnight_for_the_next_bar_of_a_day() -> None:
    for seed in range(6):
        assert assert_equal_results([OnDays], seed, bars_of(seed, 60, MONDAY, 86_400), WIDE) > 5


class Calm(Plain, key="plain"):
    odd = 0.0


class CalmOnMinutes(OnMinutes, key="plain"):
    odd = 0.0


@pytest.mark.parametrize("costs", [FREE, FeesConfig()])
def test_most_orders_within_wide_limits_are_taken(costs: FeesConfig) -> None:
    config = replace(WIDE, costs=costs)
    for kind, data in (
        (Calm, tape(ticks_of(4, 400, (1.0,), BEGIN))),
        (CalmOnMinutes, bars_of(4, 200, MONDAY, 60)),
    ):
        taken = assert_equal_results([kind], 4, data, config)
        kind.seed = 4
        result = run_backtest(kind.from_params(), data, config, instruments=KNOWN)
        assert taken > 0.8 * len(result.proposals) > 100


class Scripted(Strategy[NoParams], key="scripted"):
    """Returns what the script has for the number of a tick."""

    script: Mapping[int, Signal] = {}

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.ticks = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        self.ticks += 1
        signal = self.script.get(self.ticks - 1)
        return () if signal is None else (signal,)


def run_script(
    script: Mapping[int, Signal], ticks: Sequence[Tick], config: BacktestConfig = WIDE
) -> BacktestResult:
    """Run a script both ways; return the result."""
    Scripted.script = script
    assert assert_equal_results([Scripted], 1, tape(ticks), config) > 0
    return run_backtest(Scripted.from_params(), tape(ticks), config, way="generic")


def test_a_signal_is_acted_on_once_even_if_its_id_was_not_needed_before() -> None:
    ticks = prices([10_000.0] * 6)
    bought = Signal(symbol="005930", side=Side.BUY, at=ticks[0].at)
    sold = Signal(symbol="005930", side=Side.SELL, at=ticks[2].at, intent_type=EXIT)
    result = run_script({0: bought, 2: sold, 4: bought}, ticks)
    assert result.refusals == {DUPLICATE: 1}
    assert len(result.fills) == 2


def test_positions_stay_in_the_order_of_their_fills() -> None:
    first, second = prices([10_000.0] * 6), prices([20_000.0] * 6, "000660")
    first[5] = replace(first[5], price=9_000.0)
    ticks = [each for pair in zip(first, second, strict=True) for each in pair]
    limit = Signal(
        symbol="005930", side=Side.BUY, at=BEGIN, type=OrderType.LIMIT, price=Decimal(9_500)
    )
    market = Signal(symbol="000660", side=Side.BUY, at=BEGIN + 1)
    result = run_script({0: limit, 3: market}, ticks)
    assert [each.symbol for each in result.still_open] == ["000660", "005930"]


def test_what_waiting_purchases_hold_cannot_be_spent_again() -> None:
    first, second = prices([10_000.0] * 4), prices([10_000.0] * 4, "000660")
    ticks = [each for pair in zip(first, second, strict=True) for each in pair]
    given: dict[str, Any] = {"cash": Decimal(1_050_000), "costs": FeesConfig(krx_fee=0.1)}
    script = {
        0: Signal(symbol="005930", side=Side.BUY, at=BEGIN),
        1: Signal(symbol="000660", side=Side.BUY, at=BEGIN),
    }
    result = run_script(script, ticks, replace(WIDE, **given))
    assert [each for each in result.refusals if "won are free" in each]
    assert len(result.fills) == 1


@pytest.mark.parametrize("symbol", ["005930", "KRW-BTC"])
def test_an_order_that_waits_at_midnight_ends_with_the_day(symbol: str) -> None:
    ticks = prices([10_000.0, 10_000.0, 10_000.0], symbol, BEGIN + 15 * 3600 - 1)
    ticks[1:] = [replace(each, at=each.at + 10) for each in ticks[1:]]
    bought = Signal(symbol=symbol, side=Side.BUY, at=ticks[0].at)
    result = run_script({0: bought}, ticks)
    assert result.expired
    assert not result.fills


def test_a_waiting_order_can_be_cancelled() -> None:
    class Cancels(Scripted, key="scripted"):
        def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
            return [Cancel(each) for each in view.orders] or super().on_tick(tick, view)

    config = changed(WIDE, [("paper.latency_ms", 1500.0)])
    Cancels.script = {0: Signal(symbol="005930", side=Side.BUY, at=BEGIN)}
    data = tape(prices([10_000.0] * 5))
    assert assert_equal_results([Cancels], 1, data, config) == 1
    result = run_backtest(Cancels.from_params(), data, config, way="generic")
    assert result.expired == {BY_STRATEGY: 1}
    assert not result.fills
