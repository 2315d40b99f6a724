"""The built-in strategies enter and exit as documented, compiled and interpreted."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.domain import IntentType, Side
from qts.strategies import MovingAverageSwing, RsiScalper, StepStrategy, SurgeBreakout
from qts.strategies.step import compile_step
from tests.pipeline.portfolios import tick, view

ALL = (MovingAverageSwing, RsiScalper, SurgeBreakout)


def decisions(strategy: StepStrategy[Any], prices: list[float], volume: float = 100.0) -> list[str]:
    """Return the signals tick by tick; every signal fills at once."""
    position, found = 0, []
    for number, price in enumerate(prices):
        held = {"005930": (position, 10_000)} if position else {}
        now = replace(tick(price=price, at=number + 1.0), volume=volume)
        for signal in strategy.on_tick(now, view(tick(price=price), held=held)):
            found.append(f"{signal.side} {number}")
            position = 10 if signal.side is Side.BUY else 0
    return found


def test_moving_averages_enter_on_the_way_up_and_exit_on_the_way_down() -> None:
    strategy = MovingAverageSwing.from_params({"fast": 2, "slow": 5, "margin": 0})
    falls, rises = [100.0 - n for n in range(10)], [91.0 + n for n in range(10)]
    found = decisions(strategy, falls + rises + falls)
    assert [each.split()[0] for each in found] == ["BUY", "SELL"]
    assert 10 <= int(found[0].split()[1]) < 16
    assert int(found[1].split()[1]) >= 20


def test_rsi_waits_for_the_turn() -> None:
    strategy = RsiScalper.from_params({"length": 5})
    falling = [100.0 - n for n in range(12)]
    assert decisions(strategy, falling) == []
    found = decisions(
        RsiScalper.from_params({"length": 5}), [*falling, 90.0, 93.0, 97.0, 99.0, 103.0]
    )
    assert [each.split()[0] for each in found] == ["BUY", "SELL"]


def test_breakout_needs_volume_and_gives_back_little() -> None:
    quiet = [100.0, 101.0, 100.0, 101.0, 100.0]
    params = {"window": 4, "margin": 0.01, "volume_ratio": 2.0, "give_back": 0.02}
    assert decisions(SurgeBreakout.from_params(params), [*quiet, 104.0]) == []
    loud = SurgeBreakout.from_params(params)
    assert decisions(loud, quiet) == []
    rising = [104.0, 106.0, 105.0, 103.0]
    (entry,) = loud.on_tick(replace(tick(price=rising[0], at=9.0), volume=500.0), view(tick()))
    assert entry.side is Side.BUY
    long = view(tick(), held={"005930": (10, 104)})
    assert not loud.on_tick(tick(price=106.0, at=10.0), long)
    assert not loud.on_tick(tick(price=105.0, at=11.0), long)
    (exit_signal,) = loud.on_tick(tick(price=103.0, at=12.0), long)
    assert exit_signal.intent_type is IntentType.EXIT_SIGNAL


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_compiled_and_plain_agree_bit_for_bit(kind: type[StepStrategy[Any]], seed: int) -> None:
    strategy = kind.from_params()
    fast, plain = compile_step(kind.step), kind.step
    assert fast is not plain
    one, two = np.zeros(kind.state_size), np.zeros(kind.state_size)
    chance = random.Random(seed)  # noqa: S311 - a walk, not a secret
    price, position = 10_000.0, 0.0
    for number in range(400):
        price *= math.exp(chance.gauss(0, 0.003))
        volume = chance.uniform(0, 1000)
        results = [
            step(state, strategy.numbers, price, volume, float(number), position)
            for step, state in ((fast, one), (plain, two))
        ]
        assert results[0] == results[1]
        assert one.tobytes() == two.tobytes()
        position = max(0.0, position + results[0])


@pytest.mark.parametrize("kind", ALL)
def test_state_is_kept_when_parameters_change(kind: type[StepStrategy[Any]]) -> None:
    strategy = kind.from_params()
    for number in range(30):
        strategy.on_tick(tick(price=100.0 + number, at=float(number)), view(tick()))
    before = strategy._states["005930"].copy()
    strategy.set_params(kind.from_params().params)
    assert (strategy._states["005930"] == before).all()
