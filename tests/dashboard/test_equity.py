"""The curve of the equity and the profit of the day, from the samples of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qts.dashboard.results import CURVE_SPANS, load_curve, load_day_profit
from qts.database import Database
from qts.domain import RefusedError
from qts.pipeline import trading_day_start
from tests.accounts import PAPER, UPBIT

NOW = datetime(2026, 11, 17, 3, 0, tzinfo=UTC)  # noon in Seoul
_INSERT = (
    "INSERT INTO run_sample (broker, account, started_at, taken_at, equity, cash, unrealised,"
    " counts) VALUES ($1, $2, $3, $3, $4, $4, 0, '{}')"
)


async def store(
    database: Database, samples: list[tuple[datetime, int]], key: tuple[str, str] = PAPER
) -> None:
    for at, equity in samples:
        await database.execute(_INSERT, *key, at, Decimal(equity))


async def test_a_curve_has_the_last_sample_of_each_bin_and_the_worst_drawdown(
    database: Database,
) -> None:
    minutes = [NOW - timedelta(minutes=12 - n) for n in range(12)]
    equities = [100, 110, 99, 105, 105, 120, 120, 90, 118, 120, 121, 119]
    await store(database, list(zip(minutes, equities, strict=True)))
    await store(database, [(NOW, 5)], UPBIT)
    curve = await load_curve(database, (PAPER,), "1d", NOW)
    assert [each.equity for each in curve.points] == [110, 120, 119]  # :48 to :49, :54, :59
    assert curve.max_drawdown == pytest.approx(0.25)  # from 120 to 90
    assert [round(each.drawdown, 3) for each in curve.points] == [0.0, 0.1, 0.25]
    assert curve.points[-1].at == minutes[-1].timestamp()


async def test_accounts_add_up_by_the_last_sample_of_each(database: Database) -> None:
    minutes = [NOW - timedelta(minutes=n) for n in (14, 9, 4)]
    await store(database, list(zip(minutes, (100, 120, 110), strict=True)))
    await store(database, [(minutes[0] + timedelta(seconds=1), 50), (minutes[2], 40)], UPBIT)
    curve = await load_curve(database, (PAPER, UPBIT), "1d", NOW)
    assert [each.equity for each in curve.points] == [150, 170, 150]
    assert curve.max_drawdown == pytest.approx(20 / 170)
    profit = await load_day_profit(database, (PAPER, UPBIT), NOW)
    assert (profit.equity_start, profit.equity) == (Decimal(150), Decimal(150))
    alone = await load_day_profit(database, (UPBIT,), NOW)
    assert (alone.equity_start, alone.equity) == (Decimal(50), Decimal(40))


async def test_a_span_begins_where_it_should(database: Database) -> None:
    await store(database, [(NOW - timedelta(days=days), 100 + days) for days in (0, 3, 20, 200)])
    found = {
        span: [each.equity for each in (await load_curve(database, (PAPER,), span, NOW)).points]
        for span in CURVE_SPANS
    }
    assert found == {
        "1d": [100],
        "1w": [103, 100],
        "1m": [120, 103, 100],
        "all": [300, 120, 103, 100],
    }
    with pytest.raises(RefusedError, match=r"span '2d' .*1d"):
        await load_curve(database, (PAPER,), "2d", NOW)


async def test_without_a_sample_there_is_no_figure(database: Database) -> None:
    curve = await load_curve(database, (PAPER,), "all", NOW)
    assert (curve.points, curve.max_drawdown) == ([], 0.0)
    profit = await load_day_profit(database, (PAPER,), NOW)
    assert (profit.equity, profit.equity_start, profit.unrealised, profit.at) == (None,) * 4


async def test_the_day_starts_with_the_last_equity_before_it(database: Database) -> None:
    day = trading_day_start(NOW)
    await store(database, [(day - timedelta(hours=9), 100), (day + timedelta(hours=9), 107)])
    profit = await load_day_profit(database, (PAPER,), NOW)
    assert (profit.equity_start, profit.equity) == (Decimal(100), Decimal(107))
    assert profit.at == day + timedelta(hours=9)
    assert profit.unrealised == 0
    tomorrow = await load_day_profit(database, (PAPER,), NOW + timedelta(days=1))
    assert (tomorrow.unrealised, tomorrow.equity_start) == (None, Decimal(107))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=40), st.sampled_from(sorted(CURVE_SPANS))
)
async def test_the_drawdown_is_that_of_all_samples(
    database: Database, equities: list[int], span: str
) -> None:
    await database.execute("DELETE FROM run_sample")
    began = NOW - timedelta(minutes=7 * len(equities))
    await store(
        database, [(began + timedelta(minutes=7 * n), each) for n, each in enumerate(equities)]
    )
    peak, worst = 0, 0.0
    for equity in equities:
        peak = max(peak, equity)
        worst = max(worst, 1 - equity / peak)
    curve = await load_curve(database, (PAPER,), span, NOW)
    assert curve.max_drawdown == pytest.approx(worst, abs=1e-9)
    assert curve.points[-1].equity == equities[-1]
