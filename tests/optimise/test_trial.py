"""A trial in sample never depends on bars out of sample."""

from __future__ import annotations

import numpy as np
import pytest

from qts.backtest import BacktestConfig, BarTape, default_instruments
from qts.optimise import TrialContext, make_folds
from qts.optimise.trial import Task, Trial, TrialRunner
from qts.pipeline import StrategyConfig
from tests.backtest.bars import bar_tape, day_closes

CROSS = StrategyConfig(source="tests/optimise/strategies.py:Cross", name="cross")


@pytest.fixture(scope="module")
def tape() -> BarTape:
    chance = np.random.default_rng(3)
    bars = []
    price = 50_000.0
    for at in day_closes(120):
        first, last = (round(price * (1 + chance.normal(0, 0.02)) / 50) * 50 for _ in range(2))
        bars.append((at, (first, max(first, last) + 50, min(first, last) - 50, last)))
        price = last
    return bar_tape({"005930": bars})


def changed(tape: BarTape, after: float) -> BarTape:
    """Return the bars with other prices after a time."""
    rows = tape.rows.copy()
    late = rows["at"] > after
    for name in ("open", "high", "low", "close"):
        rows[name][late] = np.round(rows[name][late] * 1.5 / 50) * 50
    return BarTape(tape.timeframe, tape.symbols, rows)


def run(tape: BarTape, task: Task) -> Trial:
    settings = BacktestConfig(use_stops=False)
    return TrialRunner(TrialContext(CROSS, tape, settings, default_instruments(), 1)).run(task)


def tasks(tape: BarTape) -> list[tuple[Task, Task]]:
    return [
        (
            Task(part="in", fold=fold.number, number=0, params={"fast": 2, "slow": 5},
                 start=fold.start, split=fold.split, end=fold.end),
            Task(part="out", fold=fold.number, number=0, params={"fast": 2, "slow": 5},
                 start=fold.start, split=fold.split, end=fold.end),
        )
        for fold in make_folds(tape.rows["at"], 3, 0.25)
    ]  # fmt: skip


def test_bars_out_of_sample_do_not_change_a_trial_in_sample(tape: BarTape) -> None:
    for inside, outside in tasks(tape):
        other = changed(tape, inside.split)
        assert run(tape, inside).digest
        assert run(tape, inside) == run(other, inside)
        assert run(tape, outside).figures != run(other, outside).figures


def test_one_bar_of_the_sample_changes_a_trial(tape: BarTape) -> None:
    """The test above would see a leak of a single bar."""
    inside, _ = tasks(tape)[0]
    last = tape.rows["at"][tape.rows["at"] < inside.split].max()
    assert run(tape, inside) != run(changed(tape, last), inside)


def test_out_of_sample_continues_from_where_the_sample_ended(tape: BarTape) -> None:
    for inside, outside in tasks(tape):
        first, second = run(tape, inside), run(tape, outside)
        assert first.figures is not None
        assert second.figures is not None
        curve = dict(second.curve)
        begun, at_split = second.curve[0][1], [v for at, v in second.curve if at <= inside.split]
        assert at_split[-1] == pytest.approx(begun * (1 + first.figures.gain))
        assert list(curve.values())[-1] == pytest.approx(at_split[-1] * (1 + second.figures.gain))


def test_an_error_of_the_strategy_is_the_error_of_its_trial(tape: BarTape) -> None:
    inside, _ = tasks(tape)[0]
    wrong = Task(part="in", fold=0, number=4, params={"fast": 9, "slow": 5},
                 start=inside.start, split=inside.split, end=inside.end)  # fmt: skip
    found = run(tape, wrong)
    assert (found.number, found.figures, found.value("sharpe")) == (4, None, None)
    assert "fast must be below slow" in found.error
