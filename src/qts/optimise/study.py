"""A study: the search in every fold, and the check of what it found out of sample.

Trial i is proposed when the values of trials 0 to i - WINDOW are known, in this order. So a sampler
knows the same at each proposal with any number of processes, and after an interruption, where the
proposals are made again and stored trials are not run again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from qts.backtest import EquityPoint, performance
from qts.domain import OperationError
from qts.optimise.folds import Fold
from qts.optimise.luck import deflated_sharpe, expected_best_sharpe
from qts.optimise.plan import WINDOW, StudyPlan
from qts.optimise.samplers import derive_seed, make_sampler
from qts.optimise.study_file import StudyFile
from qts.optimise.trial import Figures, Part, Task, Trial

Progress = Callable[[int], None]  # trials done so far


class TrialPool(Protocol):
    """What runs tasks: processes of this machine, or workers of a cluster."""

    def submit(self, task: Task) -> None: ...

    def wait(self) -> Trial:
        """Return the next trial that is done, in any order."""
        ...


class FoldResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the search of one fold found, in sample and out of sample."""

    fold: Fold
    best: Trial
    out: Trial
    tries: int  # different parameters
    expected_sharpe: float  # of the best try without skill, of a day
    deflated_sharpe: float | None


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    plan: StudyPlan
    trials: tuple[Trial, ...]
    folds: tuple[FoldResult, ...]
    out_of_sample: Figures | None  # of all folds one after the other
    curve: tuple[EquityPoint, ...]  # out of sample, all folds one after the other

    @property
    def best(self) -> FoldResult:
        """The last fold: its parameters were chosen on the latest bars."""
        return self.folds[-1]

    @property
    def digest(self) -> str:
        """Hash of every trial: parameters, value and digest of its backtest."""
        content = [
            (each.part, each.fold, each.number, each.params, each.value(self.plan.metric))
            for each in (*self.trials, *(fold.out for fold in self.folds))
        ]
        digests = [each.digest for each in (*self.trials, *(fold.out for fold in self.folds))]
        return hashlib.sha256(msgspec.json.encode((content, digests))).hexdigest()[:16]


def run_study(
    plan: StudyPlan,
    file: StudyFile,
    pool: TrialPool,
    progress: Progress = lambda _done: None,
) -> StudyResult:
    """Run what the file does not have yet; raise OperationError if no trial has a value."""
    study = _Study(plan, file, pool, progress)
    searched = [study.search(fold) for fold in plan.folds]
    chosen = [_best(plan, fold, found) for fold, found in zip(plan.folds, searched, strict=True)]
    checks = [
        study.begin("out", fold, best.number, best.params)
        for fold, best in zip(plan.folds, chosen, strict=True)
    ]
    outs = [study.result(task) for task in checks]
    folds = tuple(
        _fold_result(*each) for each in zip(plan.folds, searched, chosen, outs, strict=True)
    )
    curve = _chained(folds)
    whole = Figures.of(performance(curve, (), ()), _sum(folds, "fills")) if curve else None
    if whole is not None:
        whole = msgspec.structs.replace(whole, trades=_sum(folds, "trades"), profit_factor=None)
    return StudyResult(
        plan=plan,
        trials=tuple(trial for found in searched for trial in found),
        folds=folds,
        out_of_sample=whole,
        curve=tuple(curve),
    )


class _Study:
    """Progress of a study: what is stored, what runs."""

    def __init__(
        self, plan: StudyPlan, file: StudyFile, pool: TrialPool, progress: Progress
    ) -> None:
        self._plan = plan
        self._file = file
        self._pool = pool
        self._progress = progress
        self._done: set[tuple[str, int, int]] = set()
        self._alike = {_content(trial): trial for trial in file.trials.values()}

    def search(self, fold: Fold) -> list[Trial]:
        """Return the trials of a fold in their order."""
        plan = self._plan
        sampler = make_sampler(plan.method, plan.space, derive_seed(plan.seed, fold.number))
        in_progress: deque[Task] = deque()
        found: list[Trial] = []

        def tell() -> None:
            trial = self.result(in_progress.popleft())
            found.append(trial)
            sampler.tell(trial.value(plan.metric))

        for number in range(plan.trials):
            if len(in_progress) == WINDOW:
                tell()
            in_progress.append(self.begin("in", fold, number, sampler.ask()))
        while in_progress:
            tell()
        return found

    def begin(self, part: Part, fold: Fold, number: int, params: dict[str, Any]) -> Task:
        """Return a task, which runs unless the file has its trial, or one like it."""
        task = Task(
            part=part,
            fold=fold.number,
            number=number,
            params=params,
            start=fold.start,
            split=fold.split,
            end=fold.end,
        )
        stored = self._file.trials.get(task.key)
        if stored is None:
            self._start(task)
        elif stored.params != params:
            raise OperationError(
                f"study {self._file.name!r}: trial {number} has {stored.params}, and the search "
                f"proposes {params}; name another --study"
            )
        return task

    def _start(self, task: Task) -> None:
        """Run a task, or copy the trial with the same parameters."""
        alike = self._alike.get(_content(task))
        if alike is None:
            self._pool.submit(task)
        else:
            self._file.add(msgspec.structs.replace(alike, number=task.number))

    def result(self, task: Task) -> Trial:
        """Wait for the trial of a task."""
        while task.key not in self._file.trials:
            trial = self._pool.wait()
            self._file.add(trial)
            self._alike[_content(trial)] = trial
        self._done.add(task.key)
        self._progress(len(self._done))
        return self._file.trials[task.key]


def _content(run: Task | Trial) -> tuple[str, int, bytes]:
    """Return what decides the result of a run."""
    return run.part, run.fold, msgspec.json.encode(run.params)


def _best(plan: StudyPlan, fold: Fold, trials: list[Trial]) -> Trial:
    """Return the first trial with the highest value."""
    valued = [trial for trial in trials if trial.value(plan.metric) is not None]
    if not valued:
        errors = [trial.error for trial in trials if trial.error]
        why = f"{len(errors)} failed, the first one: {errors[0]}" if errors else "none has a fill"
        raise OperationError(
            f"fold {fold.number + 1}: no trial of {len(trials)} has a {plan.metric}; {why}"
        )
    return max(valued, key=lambda trial: trial.value(plan.metric) or 0.0)


def _fold_result(fold: Fold, trials: list[Trial], best: Trial, out: Trial) -> FoldResult:
    distinct = {msgspec.json.encode(trial.params): trial for trial in trials}
    sharpes = [
        trial.moments.sharpe if trial.moments else 0.0
        for trial in distinct.values()
        if not trial.error
    ]
    expected = expected_best_sharpe(sharpes)
    return FoldResult(
        fold=fold,
        best=best,
        out=out,
        tries=len(sharpes),
        expected_sharpe=expected,
        deflated_sharpe=deflated_sharpe(best.moments, expected) if best.moments else None,
    )


def _chained(folds: tuple[FoldResult, ...]) -> list[EquityPoint]:
    """Return the out-of-sample stretches one after the other, each from the end of the last."""
    points: list[EquityPoint] = []
    for each in folds:
        before = [equity for at, equity in each.out.curve if at <= each.fold.split]
        after = [(at, equity) for at, equity in each.out.curve if at > each.fold.split]
        if not before:
            continue
        scale = (points[-1].equity if points else before[-1]) / before[-1]
        if not points:
            points.append(EquityPoint(each.fold.split, before[-1], 0.0))
        points += [EquityPoint(at, equity * scale, 0.0) for at, equity in after]
    return points


def _sum(folds: tuple[FoldResult, ...], name: str) -> int:
    return sum(getattr(each.out.figures, name) for each in folds if each.out.figures)
