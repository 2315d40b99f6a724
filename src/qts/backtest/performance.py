"""Equity curve and performance figures of a backtest.

    cagr            (end / start) ^ (1 / years) - 1, a year has 365.25 days; none below a day
    max_drawdown    largest fall of the curve below its highest point so far, as a fraction of it
    win_rate        trades with a profit above 0 / trades: 0 counts as a loss
    profit_factor   sum of profits / sum of losses; infinite without a loss
    exposure        mean over the curve of the value of positions / equity
    turnover        value of all fills / equity at the start
    sharpe          mean / standard deviation of the daily returns x sqrt(252); none below 3 days

Profits are after fees and taxes. A position open at the end counts in the equity and in no trade.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

import msgspec

from qts.backtest.portfolio import DAY_S, day_of
from qts.backtest.trades import Trade
from qts.domain import Fill
from qts.pipeline import Portfolio

YEAR_S = 365.25 * DAY_S
TRADING_DAYS = 252
_MIN_DAYS = 3


class EquityPoint(msgspec.Struct, frozen=True, gc=False):
    at: float
    equity: float
    invested: float


class EquityCurve:
    """Points of equity, at least `interval_s` apart unless forced."""

    def __init__(self, interval_s: float) -> None:
        self.points: list[EquityPoint] = []
        self._interval_s = interval_s

    @property
    def next_at(self) -> float:
        return self.points[-1].at + self._interval_s if self.points else -math.inf

    def add(self, at: float, portfolio: Portfolio, *, force: bool = False) -> None:
        if at < self.next_at and not force:
            return
        equity, cash = portfolio.equity, portfolio.cash
        self.points.append(EquityPoint(at, float(equity), float(equity - cash)))


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
    profits = [float(trade.profit) for trade in trades]
    gross_profit = sum(profit for profit in profits if profit > 0)
    gross_loss = -sum(profit for profit in profits if profit < 0)
    factor = gross_profit / gross_loss if gross_loss else math.inf
    deepest, longest = drawdown(points)
    traded = sum((fill.price * fill.quantity for fill in fills), Decimal(0))
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
        costs=float(sum((fill.fee for fill in fills), Decimal(0))),
        turnover=float(traded) / start,
        exposure=statistics.fmean(abs(p.invested) / p.equity if p.equity else 0 for p in points),
    )


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


def sharpe(points: Sequence[EquityPoint]) -> float | None:
    closes = [points[0].equity, *{day_of(point.at): point.equity for point in points}.values()]
    returns = [end / start - 1 for start, end in pairwise(closes)]
    if len(returns) < _MIN_DAYS or not (spread := statistics.stdev(returns)):
        return None
    return statistics.fmean(returns) / spread * math.sqrt(TRADING_DAYS)
