"""Equity of accounts over time and the profit of their day, from what their runs stored.

Runs store a sample a minute (`run_samples`), so that the curve is the same before and after a
restart of a run or of the dashboard. Deposits and withdrawals are part of the equity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import msgspec

from qts.database import Database
from qts.domain import AccountKey, check_name
from qts.orders import load_account_state
from qts.pipeline import trading_day_start

# The last sample of each bin; the drawdown is the worst of all samples in it. The equity of several
# accounts is the sum of the last sample of each: of all that changed so far.
_CURVE = """
WITH own AS (
    SELECT taken_at, equity - COALESCE(lag(equity) OVER account, 0) AS change
      FROM run_sample
     WHERE (broker, account) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND taken_at >= $3
    WINDOW account AS (PARTITION BY broker, account ORDER BY taken_at)
), total AS (
    SELECT taken_at, sum(change) OVER (ORDER BY taken_at) AS equity FROM own
), sample AS (
    SELECT taken_at, equity, max(equity) OVER (ORDER BY taken_at) AS peak FROM total
)
SELECT max(taken_at) AS at, (array_agg(equity ORDER BY taken_at DESC))[1] AS equity,
       COALESCE(max(1 - equity / NULLIF(peak, 0)), 0) AS drawdown
  FROM sample
 GROUP BY date_bin($4, taken_at, 'epoch')
 ORDER BY 1
"""
_LAST = (
    "SELECT taken_at, equity, unrealised FROM run_sample WHERE broker = $1 AND account = $2"
    " AND taken_at < $3 ORDER BY taken_at DESC LIMIT 1"
)
_FIRST = (
    "SELECT equity FROM run_sample WHERE broker = $1 AND account = $2 AND taken_at >= $3"
    " ORDER BY taken_at LIMIT 1"
)


class _Span(NamedTuple):
    length: timedelta | None  # None: everything
    bin: timedelta


SPANS = {
    "1d": _Span(timedelta(days=1), timedelta(minutes=5)),
    "1w": _Span(timedelta(days=7), timedelta(minutes=30)),
    "1m": _Span(timedelta(days=31), timedelta(hours=2)),
    "all": _Span(None, timedelta(days=1)),
}


class CurvePoint(NamedTuple):
    at: float  # seconds since 1970
    equity: float
    drawdown: float  # from the highest equity of the span so far, as a fraction


class AccountCurve(msgspec.Struct, frozen=True):
    bin_s: float
    points: list[CurvePoint]
    max_drawdown: float


class DayProfit(msgspec.Struct, frozen=True):
    """Profit of the trading day; None where no run stored a figure."""

    realised: Decimal  # after fees
    unrealised: Decimal | None  # of the last sample of the day
    equity: Decimal | None
    equity_start: Decimal | None  # before the day, or at its first sample
    at: datetime | None  # of the last sample


async def load_curve(
    database: Database, accounts: Sequence[AccountKey], span: str, now: datetime
) -> AccountCurve:
    """Return the curve of all accounts together; raise RefusedError for an unknown span."""
    check_name("span", span, SPANS)
    length, width = SPANS[span]
    since = now - length if length else datetime.min.replace(tzinfo=now.tzinfo)
    brokers, names = [each.broker for each in accounts], [each.account for each in accounts]
    rows = await database.fetch(_CURVE, brokers, names, since, width)
    points = [
        CurvePoint(row["at"].timestamp(), float(row["equity"]), float(row["drawdown"]))
        for row in rows
    ]
    worst = max((each.drawdown for each in points), default=0.0)
    return AccountCurve(width.total_seconds(), points, worst)


async def load_day_profit(
    database: Database, accounts: Sequence[AccountKey], now: datetime
) -> DayProfit:
    """Return the profit of all accounts together."""
    parts = [await _day_profit(database, each, now) for each in accounts]
    return DayProfit(
        sum((each.realised for each in parts), Decimal(0)),
        _sum(each.unrealised for each in parts),
        _sum(each.equity for each in parts),
        _sum(each.equity_start for each in parts),
        max((each.at for each in parts if each.at is not None), default=None),
    )


def _sum(values: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of what is known; None if nothing is."""
    known = [each for each in values if each is not None]
    return sum(known, Decimal(0)) if known else None


async def _day_profit(database: Database, account: AccountKey, now: datetime) -> DayProfit:
    day = trading_day_start(now)
    state = await load_account_state(database, account, day, now)
    last = await database.fetchrow(_LAST, *account, now + timedelta(days=1))
    before = await database.fetchrow(_LAST, *account, day)
    start = before["equity"] if before else await database.fetchval(_FIRST, *account, day)
    return DayProfit(
        state.earned_today,
        last["unrealised"] if last and last["taken_at"] >= day else None,
        last["equity"] if last else None,
        start,
        last["taken_at"] if last else None,
    )
