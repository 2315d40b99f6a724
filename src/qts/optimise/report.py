"""Report of a study: terminal table, JSON, and a page with surface, curves and table of trials."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from qts.backtest import EquityPoint, HtmlPage
from qts.optimise.search import ParamRange
from qts.optimise.study import FoldResult, StudyResult
from qts.optimise.trial import Figures, Metric, Trial

if TYPE_CHECKING:
    from rich.table import Table


SURE = 0.95  # probability below which a result counts as possible luck
YEAR = math.sqrt(252)  # from the Sharpe ratio of a day to that of a year


class StudyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says beside the result."""

    study: str
    strategy: str
    data: str
    data_digest: str
    command: str  # that repeats the study
    best_command: str  # that repeats the best backtest, in sample
    check_command: str  # that repeats the best backtest, in sample and out of sample


def params_text(params: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in params.items())


def day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def figures(result: StudyResult, info: StudyInfo) -> Iterator[tuple[str, str]]:
    """Yield the figures as names and formatted values."""
    plan, best = result.plan, result.best
    yield "study", info.study
    yield "strategy", f"{info.strategy}, {info.data}"
    yield "search", search_text(result)
    yield "best parameters", params_text(best.best.params)
    yield "in sample", _figures_text(best.best.figures)
    yield "out of sample", _figures_text(best.out.figures) if best.out.figures else best.out.error
    yield "luck", luck_text(best)
    if len(plan.folds) > 1:
        for each in result.folds:
            yield f"  fold {each.fold.number + 1}", _fold_text(each, plan.metric)
        if result.out_of_sample:
            yield "all out of sample", _figures_text(result.out_of_sample)
    yield "digest", result.digest
    yield "backtest of the best", info.best_command
    yield "repeat", info.command


def search_text(result: StudyResult) -> str:
    plan, failed = result.plan, sum(bool(trial.error) for trial in result.trials)
    folds = f" in each of {len(plan.folds)} folds" if len(plan.folds) > 1 else ""
    text = f"{plan.trials:,} trials{folds}, {plan.method}, highest {plan.metric}, seed {plan.seed}"
    return f"{text}; {failed:,} failed" if failed else text


def luck_text(each: FoldResult) -> str:
    """Return the deflated Sharpe ratio in words."""
    expected = (
        f"the best of {each.tries:,} tries without skill has {each.expected_sharpe * YEAR:.2f}"
    )
    if each.deflated_sharpe is None:
        return f"Sharpe ratio undefined; {expected}"
    return f"deflated Sharpe ratio {each.deflated_sharpe:.3f}; {expected}"


def study_warnings(result: StudyResult) -> list[str]:
    """Return what a reader must know before the figures."""
    found, best = [], result.best
    if best.deflated_sharpe is None or best.deflated_sharpe < SURE:
        shown = "undefined" if best.deflated_sharpe is None else f"{best.deflated_sharpe:.3f}"
        found.append(
            f"the best of {best.tries:,} tries may be luck: deflated Sharpe ratio {shown}, "
            f"below {SURE}"
        )
    errors = [trial.error for trial in result.trials if trial.error]
    if errors:
        found.append(f"{len(errors):,} of {len(result.trials):,} trials failed, as {errors[0]}")
    return found


def render_study_table(result: StudyResult, info: StudyInfo) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in figures(result, info):
        table.add_row(name, Text(value, "bold" if name == "best parameters" else ""))
    return table


def study_json(result: StudyResult, info: StudyInfo) -> dict[str, Any]:
    """Return the report as JSON values; it does not depend on the number of processes."""
    plan = result.plan
    return {
        "study": info.study,
        "strategy": info.strategy,
        "method": plan.method,
        "metric": plan.metric,
        "seed": plan.seed,
        "parameters": [str(each) for each in plan.space.ranges],
        "data": {"description": info.data, "digest": info.data_digest},
        "best": _fold_json(result.best, plan.metric),
        "folds": [_fold_json(each, plan.metric) for each in result.folds],
        "out_of_sample": result.out_of_sample,
        "trials": [_trial_json(trial, plan.metric) for trial in result.trials],
        "warnings": study_warnings(result),
        "digest": result.digest,
        "best_command": info.best_command,
        "check_command": info.check_command,
        "command": info.command,
    }


def _fold_json(each: FoldResult, metric: Metric) -> dict[str, Any]:
    return {
        "fold": each.fold.number + 1,
        "start": datetime.fromtimestamp(each.fold.start, UTC),
        "split": datetime.fromtimestamp(each.fold.split, UTC),
        "end": datetime.fromtimestamp(each.fold.end, UTC),
        "params": each.best.params,
        "trial": each.best.number,
        "in_sample": _trial_json(each.best, metric),
        "out_of_sample": _trial_json(each.out, metric),
        "tries": each.tries,
        "expected_best_sharpe": each.expected_sharpe * YEAR,
        "deflated_sharpe": each.deflated_sharpe,
    }


def _trial_json(trial: Trial, metric: Metric) -> dict[str, Any]:
    return {
        "fold": trial.fold + 1,
        "number": trial.number,
        "params": trial.params,
        "value": trial.value(metric),
        "figures": trial.figures,
        "digest": trial.digest,
        "error": trial.error,
    }


def _fold_text(each: FoldResult, metric: Metric) -> str:
    inside, outside = each.best.value(metric), each.out.value(metric)
    luck = number(each.deflated_sharpe, ".3f")
    return (
        f"{day(each.fold.split)} to {day(each.fold.end)}: {params_text(each.best.params)}; "
        f"{metric} {number(inside)} in sample, {number(outside)} out of sample; "
        f"deflated Sharpe ratio {luck}"
    )


def _figures_text(found: Figures | None) -> str:
    if found is None:
        return "-"
    return (
        f"return {found.gain:+.2%}, Sharpe ratio {number(found.sharpe)}, max drawdown "
        f"{-found.max_drawdown:.2%}, {found.trades:,} trades"
    )


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else f"{value:{form}}"


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
