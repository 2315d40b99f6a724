"""Results of accounts: equity over time, profit of the day, and round trips of the last days.

Runs store a sample a minute (`run_records`), so that the curve is the same before and after a
restart of a run or of the dashboard. Deposits and withdrawals are part of the equity.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from qts.backtest import OpenTrade, Trade
from qts.database import Database, Row
from qts.domain import MANUAL, AccountKey, Fill, Side, check_name
from qts.orders import load_account_state, load_owned_fills
from qts.pipeline import SEOUL, trading_day_start

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


CURVE_SPANS = {
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
    check_name("span", span, CURVE_SPANS)
    length, width = CURVE_SPANS[span]
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


TRADE_SPANS = {"7d": 7, "30d": 30, "90d": 90, "365d": 365}
MAX_LISTED = 500
_ZERO = Decimal(0)
_WON = Decimal("0.01")
_COLUMNS = (
    "opened_at", "closed_at", "symbol", "strategy", "quantity", "entry", "exit", "fees", "profit",
    "gain", "reason",
)  # fmt: skip


class TradeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Round trips of one day, strategy, symbol or exit reason; the profit is after fees."""

    name: str
    trades: int
    wins: int
    profit: Decimal


class TradesView(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of all round trips of a span, and the newest of them."""

    total: TradeGroup
    days: list[TradeGroup]  # newest first
    strategies: list[TradeGroup]
    symbols: list[TradeGroup]
    reasons: list[TradeGroup]
    trades: list[Trade]


async def load_trades(
    database: Database, accounts: Sequence[AccountKey], days: int, now: datetime
) -> list[Trade]:
    """Return the round trips that ended in the last days, the newest first."""
    began = trading_day_start(now) - timedelta(days=days - 1)
    found: list[Trade] = []
    for key in accounts:
        fills = await load_owned_fills(database, key, began, now + timedelta(seconds=1))
        found += closed_trades([row for row, _ in fills if row["counted"]], began)
    return sorted(found, key=lambda trade: trade.closed_at, reverse=True)


def group_trades(trades: Sequence[Trade]) -> TradesView:
    days = _groups(trades, lambda trade: str(trade.closed_at.astimezone(SEOUL).date()))
    return TradesView(
        total=_group("", trades),
        days=sorted(days, key=lambda each: each.name, reverse=True),
        strategies=_groups(trades, lambda trade: trade.strategy or MANUAL),
        symbols=_groups(trades, lambda trade: trade.symbol),
        reasons=_groups(trades, lambda trade: trade.reason),
        trades=list(trades[:MAX_LISTED]),
    )


def to_csv(trades: Iterable[Trade]) -> str:
    """Return the round trips as CSV; times are in Seoul, with their offset."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(_COLUMNS)
    for each in trades:
        times = [at.astimezone(SEOUL).isoformat() for at in (each.opened_at, each.closed_at)]
        numbers = (each.quantity, each.entry, each.exit, each.fees, each.profit)
        plain = [f"{number.normalize():f}" for number in numbers]
        strategy = each.strategy or MANUAL
        writer.writerow([*times, each.symbol, strategy, *plain, f"{each.gain:.6f}", each.reason])
    return out.getvalue()


def _groups(trades: Sequence[Trade], name_of: Callable[[Trade], str]) -> list[TradeGroup]:
    """Return the groups with the largest profit first."""
    parts: dict[str, list[Trade]] = {}
    for trade in trades:
        parts.setdefault(name_of(trade), []).append(trade)
    found = [_group(name, part) for name, part in parts.items()]
    return sorted(found, key=lambda each: (-each.profit, each.name))


def _group(name: str, trades: Sequence[Trade]) -> TradeGroup:
    profit = sum((trade.profit for trade in trades), _ZERO).quantize(_WON)
    wins = sum(trade.profit > 0 for trade in trades)
    return TradeGroup(name=name, trades=len(trades), wins=wins, profit=profit)


def closed_trades(rows: Iterable[Row | dict[str, Any]], began: datetime) -> list[Trade]:
    """Return the round trips that ended since `began`, oldest first.

    A fill that turns a position over ends one trade and opens another: it is split at zero.
    """
    open_trades: dict[str, OpenTrade] = {}
    trades: list[Trade] = []
    for row in rows:
        symbol, side = row["symbol"], Side(row["side"])
        after: Decimal = row["held"]
        before = after - side.sign * row["quantity"]
        if before and symbol not in open_trades:
            continue  # opened before the first row, by a fill of the same moment
        fill = _fill(row)
        turned = before * after < 0
        first = _part(fill, abs(before)) if turned else fill
        trade = open_trades.setdefault(symbol, OpenTrade(row["strategy"]))
        trade.add(first, row["intent_type"])
        if turned or not after:
            del open_trades[symbol]
            if fill.at >= began:
                trades.append(trade.to_trade())
        if turned:
            rest = OpenTrade(row["strategy"])
            rest.add(_part(fill, abs(after)), row["intent_type"])
            open_trades[symbol] = rest
    return trades


def _fill(row: Row | dict[str, Any]) -> Fill:
    return Fill(
        trade_id=row["trade_id"],
        broker_order_id=row["broker_order_id"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        quantity=row["quantity"],
        price=row["price"],
        fee=row["fee"],
        at=row["traded_at"],
    )


def _part(fill: Fill, quantity: Decimal) -> Fill:
    fee = fill.fee * quantity / fill.quantity
    return msgspec.structs.replace(fill, quantity=quantity, fee=fee)
