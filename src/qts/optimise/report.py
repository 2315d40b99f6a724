"""Report of a study: terminal table and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

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
