"""Orders that the compiled scan takes leave no trace: the result is that of a run without them."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import qts.backtest.compiled_orders as compiled_orders
import qts.backtest.compiled_scan as compiled_scan
import qts.backtest.tape as tapes
from qts.backtest import BacktestConfig, BacktestResult, Chunk, run_backtest, to_json
from qts.backtest.compiled_scan import ScanOrders
from qts.backtest.order_manager import DUPLICATE
from qts.brokers import FeesConfig, PaperConfig
from qts.domain import Tick
from qts.pipeline import SignalOutcome
from qts.risk import RiskLimitsConfig
from qts.strategies import MovingAverageSwing, NoParams, StepStrategy
from tests.backtest.tapes import BEGIN, SYMBOLS, prices, tape

FREE = FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0)
WIDE = BacktestConfig(
    limits=RiskLimitsConfig(
        orders_per_day=1_000_000,
        orders_per_minute=1_000_000,
        daily_loss=1.0,
        max_exposure=1.0,
        max_symbol_exposure=1.0,
    ),
    use_stops=False,
    paper=PaperConfig(latency_ms=1.0),
)


class Busy(StepStrategy[NoParams], key="busy"):
    """Enters and exits every few ticks, by the digits of the price."""

    state_size = 1

    @staticmethod
    def step(state: Any, _p: Any, price: float, _v: float, _at: float, position: float) -> int:
        state[0] += 1
        digit = int(price / 10 + state[0]) % 5
        if position > 0:
            return -1 if digit < 2 else 0
        return 1 if digit == 3 else 0


class Careful(Busy, key="careful"):
    """Decides with the size of its position, to the last digit."""

    @staticmethod
    def step(state: Any, _p: Any, price: float, _v: float, _at: float, position: float) -> int:
        state[0] += 1
        digit = int(price / 10 + state[0] + position * 1e8) % 5
        if position > 0:
            return -1 if digit < 2 else 0
        return 1 if digit == 3 else 0


def ticks_of(seed: int, length: int, gaps: tuple[float, ...], start: float) -> list[Tick]:
    """Return a walk of several symbols; some have no quotes, some prices and quotes are invalid."""
    rng = random.Random(seed)  # noqa: S311 - a walk, not a secret
    symbols = rng.sample(SYMBOLS, rng.randint(1, len(SYMBOLS)))
    unit = rng.choice((10.0, 10.0, 0.5, 0.01))
    last = {symbol: rng.uniform(1_000, 90_000) for symbol in symbols}
    at, found = start, []
    for _ in range(length):
        at += rng.choice(gaps)
        for symbol in symbols:
            last[symbol] *= math.exp(rng.gauss(0, 0.01))
            price = max(unit, round(last[symbol] / unit) * unit)
            if rng.random() < 0.01:
                price = rng.choice((0.0, -1.0, math.nan, math.inf))
            spread = rng.choice((0.0, 0.0, unit))
            bid, ask = (price - spread, price + spread) if spread else (0.0, 0.0)
            if rng.random() < 0.01:
                bid, ask = rng.choice(((-1.0, ask), (bid, -1.0), (0.0, price / 2)))
            found.append(Tick(symbol, price, float(rng.randint(0, 500)), bid, ask, at))
    return found


TICKS = st.builds(
    ticks_of,
    seed=st.integers(0, 2**32),
    length=st.integers(20, 120),
    gaps=st.sampled_from(
        ((1.0,), (60.0,), (0.0, 0.001, 1.0), (0.0, 60.0, 3600.0), (1.0, 7 * 3600.0))
    ),
    start=st.sampled_from((BEGIN, BEGIN + 15 * 3600 - 40, BEGIN + 0.123456, 100.0)),
)
# What differs from WIDE, at most three at a time: values that some orders reach.
CHANGES: dict[str, tuple[Any, ...]] = {
    "limits.max_order_value": (60_000, 400_000, 10**15),
    "limits.min_order_value": (1, 59_000),
    "limits.exit_margin": (0.0, 0.9),
    "limits.max_quantity": (0.5, 1.0, 7.3, 10.0),
    "limits.max_exposure": (0.02, 0.2, 0.95),
    "limits.max_symbol_exposure": (0.004, 0.05, 0.15),
    "limits.max_open_symbols": (1, 2, 3),
    "limits.daily_loss": (0.0001, 0.001, 0.01),
    "limits.orders_per_day": (5, 20),
    "limits.orders_per_minute": (1, 2, 5),
    "paper.latency_ms": (0.0, 0.01, 1500.0, 60_000.0),
    "paper.latency_jitter_ms": (800.0,),
    "paper.slippage_ticks": (1,),
    "paper.slippage_bps": (5.0,),
    "paper.volume_share": (0.1,),
    "cash": (Decimal(70_000), Decimal("600000.5"), Decimal(2_000_000)),
    "costs": (FREE, FeesConfig(krx_fee=0.1, upbit_fee=0.1)),
    "use_stops": (True,),
    "interval_s": (0.3, 45.0),
    "sample_s": (1.0, 3600.0),
    "signal_ttl_s": (1e-7,),
    "fill_timeout_s": (0.0,),
}


def changed(config: BacktestConfig, changes: list[tuple[str, Any]]) -> BacktestConfig:
    """Return the settings with other values."""
    for name, value in changes:
        part, _, field = name.rpartition(".")
        if part:
            value = replace(getattr(config, part), **{field: value})
        config = replace(config, **{part or field: value})
    return config


CONFIGS = st.builds(
    changed,
    st.just(WIDE),
    st.lists(
        st.sampled_from([(name, value) for name, found in CHANGES.items() for value in found]),
        max_size=3,
        unique_by=lambda change: change[0],
    ),
)


@contextmanager
def counted_orders() -> Iterator[list[int]]:
    """Collect how many orders each run took in its scan."""
    taken: list[int] = []
    original = ScanOrders.apply

    def apply(orders: ScanOrders, chunk: Chunk) -> None:
        before = orders.taken
        original(orders, chunk)
        taken.append(orders.taken - before)

    with patch.object(ScanOrders, "apply", apply):
        yield taken


@contextmanager
def without_compiled_orders() -> Iterator[None]:
    with patch.object(compiled_scan, "is_proven", lambda _config: False):
        yield


def content(result: BacktestResult) -> dict[str, Any]:
    """Return all of a result but its speed and mode."""
    report = to_json(result)
    for name in ("way", "seconds", "tape_seconds", "events_per_s"):
        del report[name]
    parts = (result.proposals, result.fills, result.trades, result.still_open, result.points)
    return report | {"parts": tuple(tuple(map(repr, part)) for part in parts)}


def assert_equal_results(
    kind: type[StepStrategy[Any]],
    params: dict[str, Any],
    ticks: list[Tick],
    config: BacktestConfig,
) -> int:
    """Run in all three ways; return how many orders the scan took."""
    with counted_orders() as taken:
        one = run_backtest(kind.from_params(params), tape(ticks), config, way="compiled")
    with without_compiled_orders():
        two = run_backtest(kind.from_params(params), tape(ticks), config, way="compiled")
    three = run_backtest(kind.from_params(params), tape(ticks), config, way="generic")
    assert content(one) == content(two)
    assert content(one) == content(three)
    assert one.digest == two.digest == three.digest
    return sum(taken)


def test_a_run_with_compiled_orders_has_the_result_of_one_without() -> None:
    taken: list[int] = []

    @given(
        ticks=TICKS,
        config=CONFIGS,
        kind=st.sampled_from((Busy, Careful)),
        chunk=st.sampled_from((7, 100_000)),
        rows=st.sampled_from((1, compiled_orders.LEAST_ROWS)),
    )
    def check(ticks: list[Tick], config: BacktestConfig, kind: Any, chunk: int, rows: int) -> None:
        with patch.object(tapes, "CHUNK", chunk), patch.object(compiled_orders, "LEAST_ROWS", rows):
            taken.append(assert_equal_results(kind, {}, ticks, config))

    check()
    assert sum(taken) > 50
    assert sum(count > 0 for count in taken) > len(taken) // 4


@pytest.mark.parametrize(
    "changes",
    [
        *([(name, value)] for name, values in CHANGES.items() for value in values),
        # The purchase fits into the equity, and its fee does not fit into the cash.
        [("cash", Decimal(540_000)), ("costs", FeesConfig(krx_fee=0.1, upbit_fee=0.1))],
    ],
    ids=str,
)
def test_every_setting_has_the_same_effect(changes: list[tuple[str, Any]]) -> None:
    for seed, gaps in ((1, (1.0,)), (2, (0.0, 1.0)), (3, (60.0, 7 * 3600.0))):
        assert_equal_results(Busy, {}, ticks_of(seed, 100, gaps, BEGIN), changed(WIDE, changes))


class Eager(StepStrategy[NoParams], key="eager"):
    """Enters without a position and exits with one, on every tick."""

    state_size = 1

    @staticmethod
    def step(_s: Any, _p: Any, _price: float, _v: float, _at: float, position: float) -> int:
        return -1 if position > 0 else 1


def test_a_position_below_the_smallest_order_waits_for_a_better_price() -> None:
    limits = replace(WIDE.limits, min_order_value=1, max_order_value=5_100, exit_margin=0.0)
    ticks = prices([10_007.0, 9_000.0, 10_500.0, 10_400.0, 10_300.0], "KRW-BTC")
    assert assert_equal_results(Eager, {}, ticks, replace(WIDE, limits=limits)) == 4
    result = run_backtest(Eager.from_params(), tape(ticks), replace(WIDE, limits=limits))
    assert result.refusals == {"G_DUST": 1}


def test_a_signal_that_the_venue_rejected_is_not_repeated_at_its_time() -> None:
    # Six shares and their fee cost more than there is, five do not.
    given = {"cash": Decimal(540_000), "costs": FeesConfig(krx_fee=0.1)}
    config = replace(WIDE, **given)
    ticks = prices([83_000.0, 84_000.0, 84_000.0, 84_000.0])
    ticks[1] = replace(ticks[1], at=ticks[0].at)
    assert_equal_results(Eager, {}, ticks, config)
    result = run_backtest(Eager.from_params(), tape(ticks), config)
    assert result.refusals[DUPLICATE] == 1
    assert len(result.fills) == 1


@pytest.mark.parametrize("costs", [FREE, FeesConfig()])
def test_most_orders_within_wide_limits_are_compiled(costs: FeesConfig) -> None:
    taken = orders = 0
    config = replace(WIDE, costs=costs)
    for seed in range(10):
        ticks = ticks_of(seed, 400, (1.0,), BEGIN)
        taken += assert_equal_results(Busy, {}, ticks, config)
        orders += len(run_backtest(Busy.from_params(), tape(ticks), config).proposals)
    assert taken > 0.8 * orders > 500


def test_many_orders_in_one_scan_are_applied_in_parts() -> None:
    with patch.object(compiled_orders, "LOG_ROWS", 20):
        taken = assert_equal_results(Busy, {}, ticks_of(3, 500, (1.0,), BEGIN), WIDE)
    assert taken > 100


def test_averages_cross_the_same() -> None:
    params = {"fast": 2, "slow": 6, "margin": 0}
    ticks = ticks_of(5, 600, (60.0,), BEGIN)
    assert assert_equal_results(MovingAverageSwing, params, ticks, WIDE) > 50


def test_a_reader_of_signals_gets_every_outcome() -> None:
    outcomes: list[SignalOutcome] = []
    ticks = ticks_of(1, 300, (1.0,), BEGIN)
    with counted_orders() as taken:
        result = run_backtest(
            Busy.from_params(), tape(ticks), WIDE, on_signal=outcomes.append, way="compiled"
        )
    assert sum(taken) == 0
    assert len(outcomes) == result.signals > 50


class Fragile(Busy, key="fragile"):
    """Divides by zero where a tick has no volume."""

    @staticmethod
    def step(state: Any, _p: Any, price: float, volume: float, _at: float, position: float) -> int:
        state[0] += 1 + 0 * int(1.0 / (volume // 50))
        digit = int(price / 10 + state[0]) % 5
        if position > 0:
            return -1 if digit < 2 else 0
        return 1 if digit == 3 else 0


def test_orders_before_a_step_that_raises_are_kept() -> None:
    assert assert_equal_results(Fragile, {}, ticks_of(2, 400, (1.0,), BEGIN), WIDE) > 50


def test_a_result_can_be_sent_to_another_process() -> None:
    result = run_backtest(Busy.from_params(), tape(ticks_of(1, 300, (1.0,), BEGIN)), WIDE)
    copy = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own bytes
    assert copy.fills == result.fills
    assert copy.digest == result.digest
