"""The performance figures against manual calculations."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.backtest import EquityPoint, Performance, Trade, performance
from qts.backtest.performance import YEAR_S, cagr, drawdown, sharpe
from qts.backtest.portfolio import DAY_S
from qts.backtest.report import thinned
from qts.domain import Fill, Side

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def trade(profit: int) -> Trade:
    return Trade(
        symbol="005930",
        opened_at=NOW,
        closed_at=NOW,
        quantity=Decimal(10),
        entry=Decimal(1000),
        exit=Decimal(1000),
        fees=Decimal(0),
        profit=Decimal(profit),
        reason="EXIT_SIGNAL",
    )


def fill(quantity: int, price: int, fee: int) -> Fill:
    return Fill(
        trade_id="1",
        broker_order_id="1",
        symbol="005930",
        side=Side.BUY,
        quantity=Decimal(quantity),
        price=Decimal(price),
        fee=Decimal(fee),
        at=NOW,
    )


def curve(*values: float, interval_s: float = 60.0, invested: float = 0.0) -> list[EquityPoint]:
    return [EquityPoint(i * interval_s, value, invested) for i, value in enumerate(values)]


def of(*profits: int) -> Performance:
    return performance(curve(1000, 1000), [trade(profit) for profit in profits], [])


def test_a_trade_without_profit_counts_as_a_loss() -> None:
    assert of(100, 0, -50, 0).win_rate == 0.25
    assert of(0).win_rate == 0.0
    assert of(1).win_rate == 1.0


def test_profit_factor_is_profits_over_losses_and_infinite_without_one() -> None:
    assert of(100, 50, -60).profit_factor == 2.5
    assert of(100, 0).profit_factor == math.inf
    assert of(-100).profit_factor == 0.0


def test_without_trades_there_is_no_rate() -> None:
    found = of()
    assert (found.trades, found.win_rate, found.profit_factor, found.best) == (0, None, None, None)


def test_best_worst_and_average() -> None:
    found = of(100, -40, 30)
    assert (found.best, found.worst, found.average) == (100, -40, 30)
    assert (found.gross_profit, found.gross_loss) == (130, 40)


def test_cagr_of_one_year_and_of_two() -> None:
    assert cagr(100, 121, YEAR_S) == pytest.approx(0.21)
    assert cagr(100, 121, 2 * YEAR_S) == pytest.approx(0.10)
    assert cagr(100, 50, YEAR_S) == pytest.approx(-0.5)


def test_cagr_is_undefined_below_a_day() -> None:
    assert cagr(100, 101, DAY_S - 1) is None
    assert cagr(100, 0, YEAR_S) == -1.0


def test_drawdown_is_the_deepest_fall_below_a_previous_high() -> None:
    deepest, longest = drawdown(curve(100, 120, 90, 110, 126, 119.7))
    assert deepest == pytest.approx(0.25)  # from 120 to 90
    assert longest == 120.0  # from the second point to the fourth
    assert drawdown(curve(100, 101, 102)) == (0.0, 0.0)


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60))
def test_drawdown_is_the_worst_pair(values: list[float]) -> None:
    worst = max(1 - low / high for i, high in enumerate(values) for low in values[i:])
    assert drawdown(curve(*values))[0] == pytest.approx(worst, abs=1e-12)


def test_exposure_turnover_and_costs() -> None:
    points = [EquityPoint(0, 1000, 0), EquityPoint(60, 1000, 500), EquityPoint(120, 1000, 250)]
    found = performance(points, [], [fill(10, 100, 3), fill(5, 100, 2)])
    assert found.exposure == 0.25
    assert found.turnover == 1.5
    assert found.costs == 5


def test_sharpe_is_of_the_days_and_needs_three() -> None:
    days = curve(100, 101, 100, 102, interval_s=DAY_S)
    returns = [0.0, 0.01, 100 / 101 - 1, 0.02]
    mean = sum(returns) / 4
    spread = math.sqrt(sum((r - mean) ** 2 for r in returns) / 3)
    assert sharpe(days) == pytest.approx(mean / spread * math.sqrt(252))
    assert sharpe(curve(100, 101, interval_s=DAY_S)) is None
    assert sharpe(curve(100, 100, 100, 100, interval_s=DAY_S)) is None


@given(st.lists(st.floats(1, 1e9), min_size=2, max_size=300), st.integers(4, 50))
def test_a_thinned_curve_keeps_its_ends_its_heights_and_its_depths(
    values: list[float], limit: int
) -> None:
    points = curve(*values)
    kept = thinned(points, limit)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert {min(values), max(values)} <= {point.equity for point in kept}
    assert len(kept) <= len(points)
    assert [point.at for point in kept] == sorted({point.at for point in kept})
    assert len(kept) <= limit + 2
