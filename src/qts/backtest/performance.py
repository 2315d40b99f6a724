"""Trades, equity curve and performance figures of a backtest."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Protocol, Self

import msgspec

from qts.backtest.late_values import LateRows
from qts.backtest.portfolio import DAY_S, day_of
from qts.domain import Fill, IntentType, Position, Side


class Trade(msgspec.Struct, frozen=True, kw_only=True):
    """Round trip from the fill that opens a position to the fill that closes it."""

    symbol: str
    opened_at: datetime
    closed_at: datetime
    quantity: Decimal  # total bought, or sold short
    entry: Decimal  # average prices
    exit: Decimal
    fees: Decimal
    profit: Decimal  # after fees and taxes
    reason: str  # of the last exit
    strategy: str = ""  # that entered

    @property
    def gain(self) -> float:
        """Return the profit as a fraction of the entry value."""
        return float(self.profit / (self.entry * self.quantity))


_NOTHING = Decimal(0), Decimal(0)  # quantity and value


class OpenTrade:
    """Totals of the fills of a trade so far."""

    def __init__(self, strategy: str = "") -> None:
        self._strategy = strategy
        self._first: Fill | None = None
        self._entered = self._exited = _NOTHING
        self._fees = Decimal(0)
        self._count = 0

    @property
    def only_fill(self) -> Fill | None:
        """The fill that it is made of; None: it has another number of fills."""
        return self._first if self._count == 1 else None

    @classmethod
    def of(cls, position: Position, strategy: str, at: datetime) -> Self:
        """Return the trade of a position from before: bought at its average price, without fees."""
        trade = cls(strategy)
        bought = Fill(
            trade_id="",
            broker_order_id="",
            symbol=position.symbol,
            side=Side.BUY if position.quantity > 0 else Side.SELL,
            quantity=abs(position.quantity),
            price=position.average_price,
            fee=Decimal(0),
            at=at,
        )
        trade.add(bought, IntentType.ENTRY)
        return trade

    def add(self, fill: Fill, reason: str) -> None:
        """Add a fill of an order that was placed for this reason, its intent type."""
        if self._first is None:
            self._first = fill
        self._last, self._reason = fill, reason
        self._count += 1
        self._fees += fill.fee
        if fill.side is self._first.side:
            self._entered = _added(self._entered, fill)
        else:
            self._exited = _added(self._exited, fill)

    def to_trade(self) -> Trade:
        first, last, fees = self._first, self._last, self._fees
        if first is None:
            raise AssertionError("a trade without a fill")
        (quantity, entry_value), (closed, exit_value) = self._entered, self._exited
        return Trade(
            symbol=first.symbol,
            opened_at=first.at,
            closed_at=last.at,
            quantity=quantity,
            entry=entry_value / quantity,
            exit=exit_value / closed if closed else Decimal(0),
            fees=fees,
            profit=(exit_value - entry_value) * first.side.sign - fees,
            reason=self._reason,
            strategy=self._strategy,
        )


def _added(total: tuple[Decimal, Decimal], fill: Fill) -> tuple[Decimal, Decimal]:
    quantity, value = total
    return quantity + fill.quantity, value + fill.quantity * fill.price


YEAR_S = 365.25 * DAY_S
TRADING_DAYS = 252
_MIN_DAYS = 3


class EquityPoint(msgspec.Struct, frozen=True, gc=False):
    at: float
    equity: float
    invested: float


class Valued(Protocol):
    """What a point of the curve is made of: a portfolio, or an account while a log is applied."""

    def floats(self) -> tuple[float, float]:
        """Return the equity, and the value of the positions in it."""


class EquityCurve:
    """Points of equity, at least `interval_s` apart unless forced."""

    def __init__(self, interval_s: float) -> None:
        self._numbers = array("d")  # time, equity and invested part of each point
        self._interval_s = interval_s

    @property
    def points(self) -> list[EquityPoint]:
        """Return the points so far, which are made now."""
        numbers = self._numbers
        return list(map(EquityPoint, numbers[::3], numbers[1::3], numbers[2::3]))

    @property
    def next_at(self) -> float:
        return self._numbers[-3] + self._interval_s if self._numbers else -math.inf

    def add(self, at: float, account: Valued, *, force: bool = False) -> None:
        if force or at >= self.next_at:
            equity, invested = account.floats()
            self._numbers.extend((at, equity, invested))

    def add_played(self, points: bytes) -> None:
        """Add points that the core has computed: their times, equities and invested parts."""
        self._numbers.frombytes(points)


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    start_equity: float
    end_equity: float
    gain: float  # of the whole run, as a fraction of the start
    cagr: float | None
    max_drawdown: float
    max_drawdown_s: float  # longest time below a previous high
    sharpe: float | None
    trades: int
    win_rate: float | None
    profit_factor: float | None
    gross_profit: float
    gross_loss: float
    best: float | None
    worst: float | None
    average: float | None
    costs: float
    turnover: float
    exposure: float


def performance(
    points: Sequence[EquityPoint], trades: Sequence[Trade], fills: Sequence[Fill]
) -> Performance:
    start, end = points[0].equity, points[-1].equity
    profits = _profits(trades)
    gross_profit = sum(profit for profit in profits if profit > 0)
    gross_loss = -sum(profit for profit in profits if profit < 0)
    factor = gross_profit / gross_loss if gross_loss else math.inf
    deepest, longest = drawdown(points)
    traded, costs = _amounts(fills)
    return Performance(
        start_equity=start,
        end_equity=end,
        gain=end / start - 1,
        cagr=cagr(start, end, points[-1].at - points[0].at),
        max_drawdown=deepest,
        max_drawdown_s=longest,
        sharpe=sharpe(points),
        trades=len(trades),
        win_rate=sum(profit > 0 for profit in profits) / len(profits) if profits else None,
        profit_factor=factor if profits else None,
        gross_profit=gross_profit,
        gross_loss=gross_loss,
        best=max(profits, default=None),
        worst=min(profits, default=None),
        average=statistics.fmean(profits) if profits else None,
        costs=float(costs),
        turnover=float(traded) / start,
        exposure=statistics.fmean(abs(p.invested) / p.equity if p.equity else 0 for p in points),
    )


def _profits(trades: Sequence[Trade]) -> list[float]:
    if isinstance(trades, LateRows):
        return trades.floats("profit")
    return [float(each.profit) for each in trades]


def _amounts(fills: Sequence[Fill]) -> tuple[Decimal, Decimal]:
    """Return the amounts and the fees of fills, added up."""
    if isinstance(fills, LateRows):
        return fills.total("amount"), fills.total("fee")
    amounts = (each.price * each.quantity for each in fills)
    return sum(amounts, Decimal(0)), sum((each.fee for each in fills), Decimal(0))


def cagr(start: float, end: float, seconds: float) -> float | None:
    if seconds < DAY_S:
        return None
    if end <= 0:
        return -1.0
    try:
        return math.pow(end / start, YEAR_S / seconds) - 1
    except OverflowError:
        return math.inf


def drawdown(points: Sequence[EquityPoint]) -> tuple[float, float]:
    """Return the deepest drawdown as a fraction, and the longest one in seconds."""
    top, top_at, deepest, longest = points[0].equity, points[0].at, 0.0, 0.0
    for point in points:
        if point.equity >= top:
            top, top_at = point.equity, point.at
        else:
            deepest = max(deepest, 1 - point.equity / top)
            longest = max(longest, point.at - top_at)
    return deepest, longest


def day_closes(points: Sequence[EquityPoint]) -> list[EquityPoint]:
    """Return the first point, and the last one of every day."""
    return [points[0], *{day_of(point.at): point for point in points}.values()]


def daily_returns(points: Sequence[EquityPoint]) -> list[float]:
    closes = [point.equity for point in day_closes(points)]
    return [end / start - 1 for start, end in pairwise(closes)]


def sharpe(points: Sequence[EquityPoint]) -> float | None:
    returns = daily_returns(points)
    if len(returns) < _MIN_DAYS or not (spread := statistics.stdev(returns)):
        return None
    return statistics.fmean(returns) / spread * math.sqrt(TRADING_DAYS)
