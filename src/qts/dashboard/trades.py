"""Round trips of the last days, by day, strategy, symbol and exit reason, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from qts.backtest import Trade
from qts.dashboard.daily_report import closed_trades
from qts.database import Database
from qts.domain import MANUAL, AccountKey
from qts.orders import load_owned_fills
from qts.pipeline import SEOUL, trading_day_start

SPANS = {"7d": 7, "30d": 30, "90d": 90, "365d": 365}
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
