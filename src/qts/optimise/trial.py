"""One trial: a backtest with given parameters over a stretch of the bars.

The result of a trial depends on its parameters, its stretch and the seed of the study alone: not on
its number, on the process that ran it, or on the trials before it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
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
from qts.optimise.luck import ReturnMoments
from qts.optimise.samplers import derive_seed
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
