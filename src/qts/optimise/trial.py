"""One trial: a backtest with given parameters over a stretch of the bars, and its figures.

The result of a trial depends on its parameters, its stretch and the seed of the study alone: not on
its number, on the process that ran it, or on the trials before it.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from qts.backtest import (
    BacktestConfig,
    BacktestResult,
    BarTape,
    EquityPoint,
    Performance,
    daily_returns,
    day_closes,
    performance,
    run_backtest,
)
from qts.domain import Instruments
from qts.optimise.search import derive_seed
from qts.pipeline import StrategyConfig

Metric = Literal["sharpe", "return", "cagr", "calmar", "profit_factor"]
Part = Literal["in", "out"]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a stretch; what is undefined or infinite is None."""

    gain: float
    cagr: float | None
    sharpe: float | None
    max_drawdown: float
    profit_factor: float | None
    trades: int
    fills: int

    @classmethod
    def of(cls, found: Performance, fills: int) -> Figures:
        return cls(
            gain=found.gain,
            cagr=_finite(found.cagr),
            sharpe=_finite(found.sharpe),
            max_drawdown=found.max_drawdown,
            profit_factor=_finite(found.profit_factor),
            trades=found.trades,
            fills=fills,
        )

    @property
    def calmar(self) -> float | None:
        return (
            self.cagr / self.max_drawdown if self.cagr is not None and self.max_drawdown else None
        )


METRICS: dict[Metric, Callable[[Figures], float | None]] = {
    "sharpe": lambda figures: figures.sharpe,
    "return": lambda figures: figures.gain,
    "cagr": lambda figures: figures.cagr,
    "calmar": lambda figures: figures.calmar,
    "profit_factor": lambda figures: figures.profit_factor,
}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: in sample over (start, split], out of sample over (start, end].

    The second one plays the bars of the first one again, so that indicators and positions are those
    of somebody who has traded all along, and its figures count from the split on.
    """

    part: Part
    fold: int
    number: int
    params: dict[str, Any]
    start: float
    split: float
    end: float

    @property
    def key(self) -> tuple[Part, int, int]:
        return self.part, self.fold, self.number


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a task; without figures, `error` says why."""

    part: Part
    fold: int
    number: int
    params: dict[str, Any]
    figures: Figures | None = None
    moments: ReturnMoments | None = None
    digest: str = ""  # of the backtest
    error: str = ""
    curve: tuple[tuple[float, float], ...] = ()  # out of sample: equity at the close of each day

    @property
    def key(self) -> tuple[Part, int, int]:
        return self.part, self.fold, self.number

    def value(self, metric: Metric) -> float | None:
        """Return what the search maximises; None without a fill or where it is undefined."""
        if self.figures is None or not self.figures.fills:
            return None
        return METRICS[metric](self.figures)

    @classmethod
    def failed(cls, task: Task, error: str) -> Trial:
        return cls(
            part=task.part, fold=task.fold, number=task.number, params=task.params, error=error
        )


class TrialContext(msgspec.Struct, frozen=True):
    """What all trials of a study share; sent to each worker once."""

    strategy: StrategyConfig  # its parameters hold where a trial sets none
    tape: BarTape
    settings: BacktestConfig
    instruments: Instruments
    seed: int


class TrialRunner:
    """Runs tasks one after the other; keeps the stretch of the last one."""

    def __init__(self, context: TrialContext) -> None:
        self._context = context
        self._stretch: tuple[tuple[float, float], BarTape] | None = None

    def run(self, task: Task) -> Trial:
        """Return the trial; what goes wrong in it is its error."""
        context = self._context
        seed = derive_seed(context.seed, sorted(task.params.items()))
        random.seed(seed)  # the global generators, which a strategy may use
        np.random.seed(seed)
        try:
            result = run_backtest(
                context.strategy.with_parameters(task.params).create(),
                self._tape(task.start, task.split if task.part == "in" else task.end),
                context.settings,
                instruments=context.instruments,
                ends_process=True,
            )
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything
            return Trial.failed(task, f"{type(error).__name__}: {error}")
        if result.stopped:
            return Trial.failed(task, result.stopped)
        return _trial(task, result)

    def _tape(self, start: float, end: float) -> BarTape:
        if self._stretch is None or self._stretch[0] != (start, end):
            self._stretch = (start, end), self._context.tape.select(None, start, end)
        return self._stretch[1]


def _trial(task: Task, result: BacktestResult) -> Trial:
    points: list[EquityPoint] = list(result.points)
    trades, fills = list(result.trades), list(result.fills)
    if task.part == "out":
        before = [point for point in points if point.at <= task.split]
        points = [*before[-1:], *(point for point in points if point.at > task.split)]
        trades = [trade for trade in trades if trade.opened_at.timestamp() > task.split]
        fills = [fill for fill in fills if fill.at.timestamp() > task.split]
    curve = day_closes(result.points) if task.part == "out" else ()
    return Trial(
        part=task.part,
        fold=task.fold,
        number=task.number,
        params=task.params,
        figures=Figures.of(performance(points, trades, fills), len(fills)),
        moments=ReturnMoments.of(daily_returns(points)),
        digest=result.digest,
        curve=tuple((point.at, point.equity) for point in curve),
    )


# Deflated Sharpe ratio: how likely a Sharpe ratio is skill, given how many were tried.
#
# D. H. Bailey and M. Lopez de Prado, "The Deflated Sharpe Ratio: Correcting for Selection Bias,
# Backtest Overfitting, and Non-Normality", Journal of Portfolio Management 40 (5), 2014.
#
#     SR0 = sqrt(V) ((1 - g) Z(1 - 1/N) + g Z(1 - 1/(N e)))     the best of N tries without skill
#     DSR = P((SR - SR0) sqrt(T - 1) / sqrt(1 - s SR + (k - 1)/4 SR^2))
#
# SR is the Sharpe ratio of one period, not of a year, T the number of returns, s their skewness,
# k their kurtosis (3 for normal ones), V the variance of the tries' Sharpe ratios, g Euler's
# constant, P the normal distribution and Z its inverse.

_EULER = 0.5772156649015329
_NORMAL = statistics.NormalDist()
_MIN_RETURNS = 3


class ReturnMoments(msgspec.Struct, frozen=True):
    """What the deflated Sharpe ratio needs of the daily returns of a trial."""

    sharpe: float  # of a day
    count: int
    skewness: float
    kurtosis: float

    @classmethod
    def of(cls, returns: Sequence[float]) -> ReturnMoments | None:
        """Return the moments; None for returns that are too few or all equal."""
        if len(returns) < _MIN_RETURNS or not (spread := statistics.stdev(returns)):
            return None
        mean = statistics.fmean(returns)
        second, third, fourth = (
            statistics.fmean((each - mean) ** power for each in returns) for power in (2, 3, 4)
        )
        if not (second**2):  # smaller than a float can square
            return None
        return cls(mean / spread, len(returns), third / second**1.5, fourth / second**2)


def expected_best_sharpe(tries: Sequence[float]) -> float:
    """Return the Sharpe ratio that the best of these tries has on average without any skill."""
    if len(tries) < 2:
        return 0.0
    count = len(tries)
    return statistics.stdev(tries) * (
        (1 - _EULER) * _NORMAL.inv_cdf(1 - 1 / count)
        + _EULER * _NORMAL.inv_cdf(1 - 1 / (count * math.e))
    )


def deflated_sharpe(best: ReturnMoments, expected: float) -> float | None:
    """Return the probability that the true Sharpe ratio exceeds `expected`; None if undefined."""
    ratio = best.sharpe
    variance = 1 - best.skewness * ratio + (best.kurtosis - 1) / 4 * ratio**2
    if variance <= 0:
        return None
    return _NORMAL.cdf((ratio - expected) * math.sqrt(best.count - 1) / math.sqrt(variance))
