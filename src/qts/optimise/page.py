"""Page of a study: surface of two parameters, curves in and out of sample, table of trials."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from qts.backtest import EquityPoint, HtmlPage
from qts.optimise.report import StudyInfo, day, figures, number, params_text, study_warnings
from qts.optimise.space import ParamRange
from qts.optimise.study import FoldResult, StudyResult
from qts.optimise.trial import Trial

MAX_BINS = 24
MAX_CHARTS = 12
MAX_ROWS = 1000


def render_study_html(result: StudyResult, info: StudyInfo) -> str:
    """Return the report as one page without scripts and without a network."""
    plan = result.plan
    page = HtmlPage(f"{info.study}: {info.strategy}")
    for warning in study_warnings(result):
        page.warning(warning)
    page.figures(figures(result, info))
    _add_surface(page, result)
    for each in result.folds[-MAX_CHARTS:]:
        page.heading(
            f"Fold {each.fold.number + 1}: {params_text(each.best.params)}; equity in sample, won; "
            f"dashed: out of sample from {day(each.fold.split)}"
        )
        page.equity(*_curves(each))
    if len(result.folds) > 1:
        page.heading("All folds out of sample, one after the other, won")
        page.equity(result.curve)
    page.heading("Folds")
    heads = ("out of sample", "tries", f"{plan.metric} in", "out", "return in", "out")
    page.table((*heads, "deflated Sharpe", "parameters"), map(_fold_row(plan.metric), result.folds))
    _add_trials(page, result)
    return page.render()


def _curves(each: FoldResult) -> tuple[list[EquityPoint], list[EquityPoint]]:
    """Return the curve in sample, and out of sample from its last point on."""
    points = [EquityPoint(at, equity, 0.0) for at, equity in each.out.curve]
    inside = [point for point in points if point.at <= each.fold.split]
    outside = [point for point in points if point.at > each.fold.split]
    return inside or outside, inside[-1:] + outside


def _fold_row(metric: Any) -> Callable[[FoldResult], Sequence[Any]]:
    def row(each: FoldResult) -> Sequence[Any]:
        gains = [trial.figures.gain if trial.figures else None for trial in (each.best, each.out)]
        return (
            f"{day(each.fold.split)} to {day(each.fold.end)}",
            f"{each.tries:,}",
            number(each.best.value(metric)),
            number(each.out.value(metric)),
            *(number(gain, "+.2%") for gain in gains),
            number(each.deflated_sharpe, ".3f"),
            (params_text(each.best.params), "text"),
        )

    return row


def _add_surface(page: HtmlPage, result: StudyResult) -> None:
    """Add a heat map of the first two parameters that vary, for the last fold."""
    metric, last = result.plan.metric, result.best.fold.number
    valued = [
        (trial, value)
        for trial in result.trials
        if trial.fold == last and (value := trial.value(metric)) is not None
    ]
    axes = [_Axis(each, [trial for trial, _ in valued]) for each in result.plan.space.varied[:2]]
    cells: defaultdict[tuple[int, int], list[float]] = defaultdict(list)

    def place(trial: Trial) -> tuple[int, int]:
        return axes[0].bin(trial), axes[1].bin(trial) if len(axes) == 2 else 0

    for trial, value in valued:
        cells[place(trial)].append(value)
    rest = [each.name for each in result.plan.space.varied[2:]]
    mean = f", mean over {', '.join(rest)}" if rest else ""
    page.heading(f"{metric} in sample, fold {last + 1}{mean}; framed: the best")
    names = (axes[0].name, axes[1].name if len(axes) == 2 else "")
    labels = (axes[0].labels, axes[1].labels if len(axes) == 2 else [""])
    means = {cell: statistics.fmean(values) for cell, values in cells.items()}
    page.heat_map(names, labels, means, place(result.best.best))


class _Axis:
    """Bins of a parameter: its values, or as many equal parts as fit."""

    def __init__(self, values: ParamRange, trials: Sequence[Trial]) -> None:
        self.name = values.name
        self._low = self._width = 0.0
        seen = list({trial.params[self.name]: None for trial in trials})
        self._positions: dict[Any, int] = {}
        if values.choices or len(seen) <= MAX_BINS:
            ordered = values.choices or sorted(seen)
            self._positions = {value: number for number, value in enumerate(ordered)}
            self.labels = [_label(value) for value in ordered]
        else:
            self._low, self._width = values.low, (values.high - values.low) / MAX_BINS
            self.labels = [_label(self._low + n * self._width) for n in range(MAX_BINS)]

    def bin(self, trial: Trial) -> int:
        value = trial.params[self.name]
        if self._positions:
            return self._positions[value]
        return min(MAX_BINS - 1, int((value - self._low) / self._width))


def _label(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _add_trials(page: HtmlPage, result: StudyResult) -> None:
    metric, names = result.plan.metric, [each.name for each in result.plan.space.ranges]
    ordered = sorted(
        result.trials,
        key=lambda trial: (trial.fold, -(_or(trial.value(metric))), trial.number),
    )
    page.heading("Trials in sample, the best first")
    if len(ordered) > MAX_ROWS:
        page.text(f"first {MAX_ROWS:,} of {len(ordered):,} trials")
    heads = (
        "fold",
        "trial",
        *names,
        metric,
        "return",
        "Sharpe",
        "max drawdown",
        "trades",
        "digest",
    )
    page.table(heads, (_trial_row(trial, result) for trial in ordered[:MAX_ROWS]))


def _or(value: float | None) -> float:
    return -float("inf") if value is None else value


def _trial_row(trial: Trial, result: StudyResult) -> Sequence[Any]:
    found = trial.figures
    return (
        str(trial.fold + 1),
        str(trial.number),
        *(_label(trial.params[each.name]) for each in result.plan.space.ranges),
        number(trial.value(result.plan.metric)),
        *(
            (
                number(found.gain, "+.2%"),
                number(found.sharpe),
                number(-found.max_drawdown, ".2%"),
                f"{found.trades:,}",
                trial.digest,
            )
            if found
            else ("-", "-", "-", "-", (trial.error, "text"))
        ),
    )
