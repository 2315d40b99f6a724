"""StepStrategy: its signals, its parameters and its state."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from qts.domain import IntentType, RefusedError, Side
from qts.strategies import StepStrategy
from qts.strategies.step import compile_step
from tests.pipeline.portfolios import tick, view


class Params(msgspec.Struct, frozen=True):
    weight: float = 2.0
    on: bool = True


class Counting(StepStrategy[Params], key="counting"):
    """Enters on its second tick, exits on its fourth."""

    state_size = 1

    @staticmethod
    def step(state: Any, params: Any, _p: float, _v: float, _at: float, _position: float) -> int:
        state[0] += params[0] / 2.0
        return 1 if state[0] == 2 else -1 if state[0] == 4 else 0


def test_results_become_signals_if_the_position_allows() -> None:
    strategy = Counting.from_params()
    flat, long = view(tick()), view(tick(), held={"005930": (10, 10_000)})
    assert list(strategy.on_tick(tick(), flat)) == []
    (entry,) = strategy.on_tick(tick(at=7.0), flat)
    assert (entry.side, entry.at, entry.intent_type) == (Side.BUY, 7.0, IntentType.ENTRY)
    assert list(strategy.on_tick(tick(), long)) == []
    (exit_signal,) = strategy.on_tick(tick(), long)
    assert (exit_signal.side, exit_signal.intent_type) == (Side.SELL, IntentType.EXIT_SIGNAL)


def test_no_entry_with_a_position_and_no_exit_without() -> None:
    strategy, long = Counting.from_params(), view(tick(), held={"005930": (10, 10_000)})
    assert [list(strategy.on_tick(tick(), long)) for _ in range(3)] == [[], [], []]
    assert list(strategy.on_tick(tick(), view(tick()))) == []


def test_every_symbol_has_its_own_state() -> None:
    strategy, flat = Counting.from_params(), view(tick())
    strategy.on_tick(tick("005930"), flat)
    strategy.on_tick(tick("000660"), flat)
    assert len(list(strategy.on_tick(tick("005930"), flat))) == 1


def test_parameters_are_numbers_in_their_order() -> None:
    assert Counting.from_params({"weight": "3", "on": "false"}).numbers.tolist() == [3.0, 0.0]

    class Word(msgspec.Struct, frozen=True):
        name: str = "x"

    class Wordy(StepStrategy[Word]):
        state_size = 1
        step = Counting.step

    with pytest.raises(RefusedError, match="every parameter of a step must be a number"):
        Wordy.from_params()


def test_new_parameters_act_from_the_next_tick() -> None:
    strategy, flat = Counting.from_params(), view(tick())
    strategy.on_tick(tick(), flat)
    strategy.set_params(Params(weight=8.0))
    assert list(strategy.on_tick(tick(), flat)) == []  # the state goes from 1 to 5


def test_bound_states_keep_their_values() -> None:
    strategy, flat = Counting.from_params(), view(tick())
    strategy.on_tick(tick(), flat)
    row = np.zeros(1)
    strategy.bind_states({"005930": row})
    assert row[0] == 1.0
    assert len(list(strategy.on_tick(tick(), flat))) == 1
    assert row[0] == 2.0


def test_a_step_is_compiled_once() -> None:
    assert compile_step(Counting.step) is compile_step(Counting.step)
    assert compile_step(Counting.step) is not Counting.step
