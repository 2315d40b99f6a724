"""The compiled and the generic mode decide the same, whatever the chunks and blocked entries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import qts.backtest.tape as tapes
from qts.backtest import BacktestConfig, Chunk, Opening, Tape, run_backtest
from qts.backtest.compiled_scan import compile_scan
from qts.backtest.order_manager import BacktestOrderManager
from qts.backtest.tick_players import Way
from qts.brokers import PaperConfig
from qts.domain import Position, RefusedError, Side
from qts.pipeline import PortfolioState
from qts.risk import RiskLimitsConfig
from qts.strategies import (
    MovingAverageSwing,
    NoParams,
    RsiScalper,
    StepStrategy,
    Strategy,
    SurgeBreakout,
)
from qts.strategies.step import compile_step
from tests.backtest.tapes import prices, tape, walk

WAYS: tuple[Way, Way] = ("compiled", "generic")
QUICK: dict[type[StepStrategy[Any]], dict[str, Any]] = {
    RsiScalper: {"length": 4, "low": 35, "high": 65},
    MovingAverageSwing: {"fast": 2, "slow": 6, "margin": 0},
    SurgeBreakout: {"window": 4, "margin": 0.001, "volume_ratio": 0.5},
}
CONFIGS = st.builds(
    BacktestConfig,
    use_stops=st.booleans(),
    limits=st.builds(
        RiskLimitsConfig,
        max_open_symbols=st.integers(1, 4),
        orders_per_day=st.integers(5, 200),
        orders_per_minute=st.integers(1, 20),
    ),
    paper=st.builds(
        PaperConfig,
        slippage_ticks=st.integers(0, 2),
        volume_share=st.sampled_from((0.0, 0.1)),
        latency_ms=st.sampled_from((0.0, 1.0, 1500.0)),
        latency_jitter_ms=st.sampled_from((0.0, 800.0)),
    ),
)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(list(QUICK)), config=CONFIGS)
def test_compiled_and_generic_decide_the_same(
    seed: int, kind: type[StepStrategy[Any]], config: BacktestConfig
) -> None:
    ticks = walk(seed, length=150)
    one = run_backtest(kind.from_params(QUICK[kind]), tape(ticks), config, way="compiled")
    two = run_backtest(kind.from_params(QUICK[kind]), tape(ticks), config, way="generic")
    assert (one.way, two.way) == ("compiled", "generic")
    assert one.fills == two.fills
    assert one.points == two.points
    assert one.digest == two.digest
    assert (one.signals, one.refusals, one.trips) == (two.signals, two.refusals, two.trips)


@pytest.mark.parametrize("use_stops", [True, False])
def test_positions_from_before_are_sold_the_same(use_stops: bool) -> None:
    held = {name: Position(name, Decimal(10), Decimal(50_000)) for name in ("005930", "000660")}
    owners = {"005930": MovingAverageSwing.key}
    opening = Opening(PortfolioState(Decimal(1_000_000), held, owners))
    config = BacktestConfig(use_stops=use_stops)
    one, two = (
        run_backtest(
            MovingAverageSwing.from_params(QUICK[MovingAverageSwing]),
            tape(walk(5, 150)),
            config,
            opening=opening,
            way=way,
        )
        for way in WAYS
    )
    assert one.fills == two.fills
    assert one.points == two.points
    assert "005930" in {fill.symbol for fill in one.fills if fill.side is Side.SELL}


def test_the_walks_of_these_tests_lead_to_trades() -> None:
    for kind, params in QUICK.items():
        found = [run_backtest(kind.from_params(params), tape(walk(seed, 150))) for seed in range(3)]
        assert sum(len(result.trades) for result in found) > 5


@pytest.mark.parametrize("way", ["compiled", "generic"])
@pytest.mark.parametrize("kind", list(QUICK))
def test_a_second_run_decides_the_same(kind: type[StepStrategy[Any]], way: Any) -> None:
    recorded = tape(walk(7))
    first = run_backtest(kind.from_params(QUICK[kind]), recorded, way=way)
    second = run_backtest(kind.from_params(QUICK[kind]), recorded, way=way)
    assert first.fills
    assert first.digest == second.digest


def test_another_tape_has_another_digest() -> None:
    found = {
        run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(walk(n))).digest
        for n in range(5)
    }
    assert len(found) == 5


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunks_of_any_size_decide_the_same(size: int) -> None:
    whole = run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(walk(11)))
    with patch.object(tapes, "CHUNK", size):
        parts = run_backtest(
            RsiScalper.from_params(QUICK[RsiScalper]), tape(walk(11)), way="compiled"
        )
    assert whole.fills
    assert whole.digest == parts.digest


def test_a_symbol_that_comes_later_is_traded_like_the_others() -> None:
    late = walk(2, 200, ["005930"]) + [
        replace(tick, at=tick.at + 200) for tick in walk(3, 200, ["005930", "000660"])
    ]
    with patch.object(tapes, "CHUNK", 64):
        one = run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(late), way="compiled")
        two = run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(late), way="generic")
    assert {fill.symbol for fill in one.fills} == {"005930", "000660"}
    assert one.digest == two.digest


LITTLE_LEFT = BacktestConfig(
    limits=RiskLimitsConfig(max_open_symbols=2, orders_per_day=22, orders_per_minute=10),
    paper=PaperConfig(slippage_ticks=0, volume_share=0.1, latency_ms=0.0, latency_jitter_ms=800.0),
)


@example(seed=2019, config=LITTLE_LEFT)  # what is left of a position is below the smallest order
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), config=CONFIGS)
def test_blocked_entries_would_have_been_refused(seed: int, config: BacktestConfig) -> None:
    """The engine skips calls of the gate without changing its decisions."""
    ticks = walk(seed, length=150)
    skipping = run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(ticks), config)
    with patch.object(BacktestOrderManager, "entry_block", lambda _manager: (float("-inf"), "")):
        complete = run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(ticks), config)
    assert skipping.digest == complete.digest
    assert skipping.signals == complete.signals


class Fragile(StepStrategy[NoParams]):
    """Divides by zero on some ticks."""

    state_size = 1

    @staticmethod
    def step(state: Any, _p: Any, price: float, volume: float, _at: float, position: float) -> int:
        state[0] = 1.0 / (volume // 250)
        return 1 if price > 0 and position == 0 else 0


def test_a_step_that_raises_is_counted_the_same_way() -> None:
    found = [
        run_backtest(Fragile.from_params(), tape(walk(1, 300)), way=w)
        for w in ("compiled", "generic")
    ]
    assert found[0].errors == found[1].errors > 10
    assert found[0].digest == found[1].digest
    assert found[0].stopped == found[1].stopped == ""


def test_a_step_that_always_raises_is_disabled_the_same_way() -> None:
    still = [replace(tick, volume=0.0) for tick in prices([10_000.0] * 50)]
    found = [
        run_backtest(Fragile.from_params(), tape(still), way=w) for w in ("compiled", "generic")
    ]
    assert found[0].errors == found[1].errors == 20
    assert all(each.stopped.startswith("20 errors in a row") for each in found)


class Picky(RsiScalper):
    def wants(self, symbol: str) -> bool:
        return symbol == "005930"


def test_a_step_strategy_with_other_overrides_runs_generic() -> None:
    result = run_backtest(Picky.from_params(QUICK[RsiScalper]), tape(walk(7)))
    assert result.way == "generic"
    assert {fill.symbol for fill in result.fills} == {"005930"}
    with pytest.raises(RefusedError, match="not a plain StepStrategy"):
        run_backtest(Picky.from_params(), tape(walk(7)), way="compiled")


class Idle(Strategy[NoParams]):
    pass


def test_progress_is_reported_after_every_chunk() -> None:
    reported: list[int] = []
    with patch.object(tapes, "CHUNK", 100):
        run_backtest(Idle.from_params(), tape(prices([10_000.0] * 250)), progress=reported.append)
    assert reported == [100, 200, 250]


def test_a_tape_can_be_read_twice() -> None:
    recorded = Tape.of_ticks(lambda: iter(prices([10_000.0] * 5)))
    assert [len(chunk.at) for chunk in recorded] == [5]
    assert [len(chunk.at) for chunk in recorded] == [5]
    assert recorded.symbols == ["005930"]


def columns(**other: Any) -> Chunk:
    chunk = {name: np.full(3, 10_000.0) for name in Chunk._fields}
    chunk |= {"symbol": np.zeros(3, np.int32), "at": 1_794_787_200.0 + np.arange(3)}
    return Chunk(**{**chunk, **other})


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (columns(symbol=np.array([0, 1, 2])), "symbol index 2; expected 0 to 1"),
        (columns(symbol=np.array([0, -1, 0])), "expected 0 to 1"),
        (columns(price=np.zeros(2)), "different lengths"),
        (columns(at=np.array([0.0, np.nan, 1.0])), "sort the data by time"),
    ],
)
def test_invalid_columns_are_refused(chunk: Chunk, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        run_backtest(RsiScalper.from_params(), Tape(["005930", "000660"], lambda _tape: [chunk]))


def test_columns_of_other_types_are_converted() -> None:
    whole = columns(
        price=np.array([10_000, 10_010, 10_020]),
        symbol=np.array([0, 0, 1]),
        volume=np.arange(6)[::2],
    )
    result = run_backtest(
        RsiScalper.from_params(), Tape(["005930", "000660"], lambda _tape: [whole])
    )
    assert (result.events, result.way) == (3, "compiled")


@pytest.fixture
def with_numba() -> str:
    found = run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(walk(7)), way="compiled")
    assert found.fills
    return found.digest


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "numba", None)
    for each in (compile_scan, compile_step):
        each.cache_clear()
    yield
    for each in (compile_scan, compile_step):
        each.cache_clear()


def test_without_numba_the_same_is_decided_in_plain_python(
    with_numba: str, without_numba: None
) -> None:
    plain = run_backtest(RsiScalper.from_params(QUICK[RsiScalper]), tape(walk(7)))
    assert plain.way == "generic"
    assert plain.digest == with_numba
    with pytest.raises(RefusedError, match="cannot run compiled: numba is not installed"):
        run_backtest(RsiScalper.from_params(), tape(walk(7)), way="compiled")
