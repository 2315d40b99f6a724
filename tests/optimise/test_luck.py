"""Deflated Sharpe ratio: the example of its paper, and what holds for any returns."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.optimise import ReturnMoments, deflated_sharpe, expected_best_sharpe


def spread_tries(count: int, variance: float) -> list[float]:
    """Return numbers with exactly this sample variance."""
    numbers = [float(n) for n in range(count)]
    return [n * math.sqrt(variance) / statistics.stdev(numbers) for n in numbers]


@pytest.mark.parametrize(("tries", "published"), [(100, 0.9004), (46, 0.9505)])
def test_the_example_of_the_paper(tries: int, published: float) -> None:
    """Five years of days, Sharpe ratio 2.5 a year, variance of the tries 1/2 a year."""
    expected = expected_best_sharpe(spread_tries(tries, 0.5 / 250))
    best = ReturnMoments(2.5 / math.sqrt(250), 1250, skewness=-3, kurtosis=10)
    assert deflated_sharpe(best, expected) == pytest.approx(published, abs=5e-5)
    if tries == 100:
        assert expected == pytest.approx(0.1132, abs=5e-5)


def test_moments_of_returns_computed_by_hand() -> None:
    """Returns 0, 0, 0, 4: mean 1, deviations -1, -1, -1, 3."""
    found = ReturnMoments.of([0.0, 0.0, 0.0, 4.0])
    assert found is not None
    assert found.count == 4
    assert found.sharpe == pytest.approx(1 / 2)
    assert found.skewness == pytest.approx(6 / 3**1.5)
    assert found.kurtosis == pytest.approx(21 / 9)


def test_too_few_or_equal_returns_have_no_moments() -> None:
    assert ReturnMoments.of([0.1, 0.2]) is None
    assert ReturnMoments.of([0.0, 0.0, 0.0, 0.0]) is None
    assert expected_best_sharpe([0.3]) == 0.0


@given(st.integers(2, 200), st.integers(2, 200))
def test_more_tries_deflate_more(one: int, other: int) -> None:
    few, many = sorted((one, other))
    best = ReturnMoments(0.1, 500, skewness=0, kurtosis=3)
    chances = [
        deflated_sharpe(best, expected_best_sharpe(spread_tries(count, 0.001))) or 0.0
        for count in (few, many)
    ]
    assert 0 <= chances[1] <= chances[0] <= 1
