"""Tick tables, price limits and the trading day."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.simulators.market.rules import (
    COIN,
    COIN_TICKS,
    STOCK_TICKS,
    at,
    hhmmss,
    is_open,
    next_open,
    phase_at,
    phases,
    price_limits,
)


@pytest.mark.parametrize(
    ("price", "tick"),
    [
        (1_999, 1), (2_000, 5), (4_995, 5), (5_000, 10), (19_990, 10), (20_000, 50),
        (49_950, 50), (50_000, 100), (199_900, 100), (200_000, 500), (500_000, 1_000),
    ],
)  # fmt: skip
def test_stock_ticks_are_those_of_2023(price: int, tick: int) -> None:
    assert STOCK_TICKS.tick(price) == tick


@pytest.mark.parametrize(
    ("won", "tick"),
    [
        (1_000_000, 1_000), (500_000, 500), (100_000, 100), (50_000, 50), (10_000, 10),
        (5_000, 5), (100, 1), (10, 0.1), (1, 0.01), (0.1, 0.001), (0.01, 0.0001),
    ],
)  # fmt: skip
def test_coin_ticks_are_those_of_2025(won: float, tick: float) -> None:
    assert COIN_TICKS.tick(round(won * COIN)) == round(tick * COIN)


def test_limits_of_the_documented_sample() -> None:
    lower, upper = price_limits(np.array([128_500]))
    assert (lower[0], upper[0]) == (90_000, 167_000)


@given(st.integers(1_000, 2_000_000))
def test_limits_are_on_ticks_and_within_thirty_percent(price: int) -> None:
    base = STOCK_TICKS.round_many(np.array([price], np.float64))
    lower, upper = price_limits(base)
    assert STOCK_TICKS.is_on(int(lower[0]))
    assert STOCK_TICKS.is_on(int(upper[0]))
    assert 0.7 * base[0] <= lower[0] < base[0] < upper[0] <= 1.3 * base[0]


@given(st.integers(1, 10**13), st.booleans())
def test_consecutive_prices_are_strictly_ordered_and_on_ticks(price: int, up: bool) -> None:
    start = int(COIN_TICKS.round_many(np.array([price], np.float64))[0])
    prices = COIN_TICKS.prices_from(start, 15, up)
    assert all(COIN_TICKS.is_on(each) for each in prices)
    assert prices == sorted(set(prices), reverse=not up)


def test_a_usual_day_has_its_phases() -> None:
    day = date(2026, 11, 16)
    assert [(p.kind, hhmmss(p.start), hhmmss(p.end)) for p in phases(day)] == [
        ("opening", "083000", "090000"),
        ("regular", "090000", "152000"),
        ("closing", "152000", "153000"),
        ("close", "153000", "153001"),
        ("after", "160000", "200000"),
    ]


def test_the_exam_day_is_an_hour_late() -> None:
    program = {p.kind: hhmmss(p.start) for p in phases(date(2026, 11, 19))}
    assert (program["regular"], program["close"], program["after"]) == (
        "100000",
        "163000",
        "170000",
    )


def test_the_first_day_of_a_year_opens_at_ten() -> None:
    program = {p.kind: hhmmss(p.start) for p in phases(next_open(date(2026, 1, 1)))}
    assert (program["regular"], program["close"]) == ("100000", "153000")


def test_there_was_no_after_market_before_september_2026() -> None:
    assert "after" not in {p.kind for p in phases(date(2026, 9, 11))}


@pytest.mark.parametrize("day", [date(2026, 6, 3), date(2026, 7, 17), date(2026, 11, 15)])
def test_holidays_and_weekends_are_closed(day: date) -> None:
    assert not is_open(day)
    assert phases(day) == ()
    assert phase_at(at(day, 10)).kind == "closed"
