"""Realised volatility of indices: range within the window, and fall since the previous close."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.risk import IndexVolatility
from qts.risk.micro_risk_loop import BUCKETS

WINDOW_S = 1800.0
EDGE_S = WINDOW_S / BUCKETS

SAMPLES = st.lists(st.tuples(st.floats(0, 600), st.floats(50, 150)), min_size=1, max_size=40)


def spread(samples: list[tuple[float, float]], since: float) -> float:
    values = [value for at, value in samples if at >= since]
    return math.log(max(values) / min(values)) if values else 0.0


@given(SAMPLES)
def test_it_is_the_range_of_the_window(steps: list[tuple[float, float]]) -> None:
    volatility, now = IndexVolatility(WINDOW_S), 1000.0
    samples: list[tuple[float, float]] = []
    for gap_s, value in steps:
        now += gap_s
        samples.append((now, value))
        found = volatility.update("KOSPI", value, 0.0, now)
        assert spread(samples, now - WINDOW_S + 2 * EDGE_S) - 1e-9 <= found
        assert found <= spread(samples, now - WINDOW_S - 2 * EDGE_S) + 1e-9


def test_an_old_move_leaves_the_window() -> None:
    volatility = IndexVolatility(WINDOW_S)
    volatility.update("KOSPI", 100.0, 0.0, 0.0)
    assert volatility.update("KOSPI", 92.0, 0.0, 60.0) == pytest.approx(math.log(100 / 92))
    assert volatility.update("KOSPI", 92.0, 0.0, 61.0 + WINDOW_S) == 0.0


def test_a_fall_over_night_counts_and_a_rise_does_not() -> None:
    assert IndexVolatility(WINDOW_S).update("KOSPI", 92.0, -0.08, 0.0) > 0.08
    assert IndexVolatility(WINDOW_S).update("KOSPI", 108.0, 0.08, 0.0) == 0.0


def test_the_most_volatile_index_counts() -> None:
    volatility = IndexVolatility(WINDOW_S)
    volatility.update("KOSDAQ", 800.0, -0.05, 0.0)
    assert volatility.update("KOSPI", 2600.0, 0.0, 0.0) > 0.05
