"""Indicators against the formulas as a textbook writes them, symbol by symbol."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qts.domain import RefusedError
from qts.router import Indicator, MessageHandler, Router, ema, rsi, vwap
from tests.router.support import (  # noqa: F401 - a fixture for every test here
    scenario,
    short_stall_floor,
    ticks,
    until,
)

Tick = tuple[int, int, int]  # symbol, price, quantity
ONE = scenario(types=1, strategies=1)
TICKS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 1_000), st.integers(0, 5)), max_size=60
)


def ema_of(prices: list[float], period: int) -> float:
    if len(prices) < period:
        return math.nan
    value = sum(prices[:period]) / period
    for price in prices[period:]:
        value += (price - value) * 2 / (period + 1)
    return value


def rsi_of(prices: list[float], period: int) -> float:
    changes = [after - before for before, after in pairwise(prices)]
    if len(changes) < period:
        return math.nan
    gain = sum(max(change, 0) for change in changes[:period]) / period
    loss = sum(max(-change, 0) for change in changes[:period]) / period
    for change in changes[period:]:
        gain = (gain * (period - 1) + max(change, 0)) / period
        loss = (loss * (period - 1) + max(-change, 0)) / period
    if gain == loss == 0:
        return 0.0
    return 100.0 if loss == 0 else 100 - 100 / (1 + gain / loss)


def vwap_of(rows: list[Tick]) -> float:
    quantity = sum(row[2] for row in rows)
    return sum(row[1] * row[2] for row in rows) / quantity if quantity else math.nan


def values_after(
    indicator: Indicator, rows: list[Tick], **where: dict[int, MessageHandler]
) -> list[float]:
    handlers = where or {"processors": {0: indicator}}
    given = [{"symbol_id": s, "price": p, "quantity": q} for s, p, q in rows]
    with Router(ONE, live=True, **handlers) as router:  # type: ignore[arg-type]
        assert router.push_many(given) == len(rows)
    assert router.report.verdict == "PASSED"
    result: list[float] = indicator.values[:4].tolist()
    return result


def by_symbol(rows: list[Tick]) -> list[list[Tick]]:
    return [[row for row in rows if row[0] == symbol] for symbol in range(4)]


SLOW = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SLOW
@given(TICKS, st.integers(1, 20))
def test_ema_is_the_textbook_one(rows: list[Tick], period: int) -> None:
    expected = [ema_of([float(row[1]) for row in part], period) for part in by_symbol(rows)]
    assert values_after(ema(period), rows) == pytest.approx(expected, nan_ok=True)


@SLOW
@given(TICKS, st.integers(1, 6))
def test_rsi_is_wilders(rows: list[Tick], period: int) -> None:
    expected = [rsi_of([float(row[1]) for row in part], period) for part in by_symbol(rows)]
    assert values_after(rsi(period), rows) == pytest.approx(expected, nan_ok=True)


@SLOW
@given(TICKS)
def test_vwap_weighs_by_quantity(rows: list[Tick]) -> None:
    expected = [vwap_of(part) for part in by_symbol(rows)]
    assert values_after(vwap(), rows) == pytest.approx(expected, nan_ok=True)


def test_rsi_has_fourteen_periods_by_default() -> None:
    rising = [(0, price, 1) for price in range(1, 16)]
    assert math.isnan(values_after(rsi(), rising[:14])[0])
    assert values_after(rsi(), rising)[0] == 100.0


def test_vwap_takes_quantities_of_any_size() -> None:
    table = vwap()
    rows = [{"price": 10, "quantity": "0.00000001"}, {"price": 20, "quantity": "3e-20"}]
    with Router(ONE, live=True, processors={0: table}) as router:
        router.push_many(rows)
    assert table.values[0] == pytest.approx((10 * 1e-8 + 20 * 3e-20) / (1e-8 + 3e-20))


def test_a_strategy_reads_a_value_that_its_processor_has_just_computed() -> None:
    average = ema(2)
    seen: list[tuple[float, float]] = []
    router = Router(
        ONE,
        live=True,
        processors={0: average},
        strategies={0: lambda m: seen.append((m.price, float(average.values[m.symbol_id])))},
    )
    with router:
        for price in (10, 20, 30):
            router.push_many([{"symbol_id": 5, "price": price}])
            until(lambda: len(seen) == price // 10)  # noqa: B023 - called at once
    assert math.isnan(seen[0][1])
    assert seen[1:] == [(20, 15.0), (30, 25.0)]


def test_an_indicator_may_be_a_strategy() -> None:
    table = ema(1)
    assert values_after(table, [(2, 7, 1)], strategies={0: table})[2] == 7.0


def test_values_are_one_table_that_cannot_be_written() -> None:
    table = ema(1, symbols=10)
    before = table.values
    assert len(before) == 10
    assert np.isnan(before).all()
    with Router(ONE, live=True, processors={0: table}) as router:
        router.push_many(ticks(10, types=1))
    assert table.values is before
    assert not np.isnan(before[:8]).any()
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 1


def test_a_symbol_beyond_the_table_fails_the_run_and_is_named() -> None:
    router = Router(ONE, live=True, processors={0: ema(5, symbols=8)})
    router.start()
    router.push_many([{"symbol_id": 7}, {"symbol_id": 8}])
    until(lambda: router.wait(0.1))
    report = router.report
    assert report.verdict == "FAILED"
    assert "processor 0 failed at" in report.failures[0]
    assert "symbol_id 8 is out of range: the indicator has 8 symbols" in report.failures[0]
    assert report.produced == report.delivered + report.undelivered


def test_one_indicator_for_two_components_is_refused() -> None:
    table = ema(5)
    with pytest.raises(RefusedError, match="one ema for two components"):
        Router(ONE, processors={0: table}, strategies={0: table})


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ema(0), "period of an indicator is 0; expected 1 to 1,000,000"),
        (lambda: rsi(-1), "period of an indicator is -1"),
        (lambda: vwap(symbols=0), "symbols of an indicator is 0"),
        (lambda: vwap(symbols=2**30), "expected 1 to 16,777,216"),
    ],
)
def test_an_indicator_that_makes_no_sense_is_refused(make: object, expected: str) -> None:
    with pytest.raises(RefusedError, match=expected):
        make()  # type: ignore[operator]
