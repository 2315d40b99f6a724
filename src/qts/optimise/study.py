"""A study: its plan, its file, the search in every fold and the check of it out of sample.

Trial i is proposed when the values of trials 0 to i - WINDOW are known, in this order. So a sampler
knows the same at each proposal with any number of processes, and after an interruption, where the
proposals are made again and stored trials are not run again.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
from msgspec.structs import replace

import qts
from qts.backtest import EquityPoint, performance
from qts.domain import OperationError, RefusedError
from qts.optimise.search import Fold, Method, SearchSpace, derive_seed, make_sampler, optuna_version
from qts.optimise.trial import (
    Figures,
    Metric,
    Part,
    Task,
    Trial,
    TrialContext,
    deflated_sharpe,
    expected_best_sharpe,
)
from qts.pipeline import StrategyConfig
from qts.strategies import Strategy

WINDOW = 16  # trials in progress at most; part of what a study is


class StudyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a study does; the number of processes is no part of it."""

    space: SearchSpace
    method: Method
    metric: Metric
    trials: int  # of each fold
    seed: int
    folds: tuple[Fold, ...]

    @property
    def runs(self) -> int:
        """Trials of all folds, and their checks out of sample."""
        return len(self.folds) * (self.trials + 1)


def study_identity(
    plan: StudyPlan, kind: type[Strategy[Any]], context: TrialContext
) -> dict[str, str]:
    """Return what decides the trials of a study; more trials continue the same one."""
    known = [context.instruments[symbol] for symbol in context.tape.symbols]
    found = {
        "strategy": context.strategy.name,
        "code": code_digest(kind),
        "parameters": " ".join(map(str, plan.space.ranges)),
        "method": plan.method,
        "metric": plan.metric,
        "seed": str(plan.seed),
        "folds": _digest(msgspec.json.encode(plan.folds)),
        "data": context.tape.digest,
        "settings": _digest(msgspec.json.encode(replace(context.settings, instances=()))),
        "instruments": _digest(msgspec.json.encode(known)),
        "window": str(WINDOW),
        "qts": qts.__version__,
    }
    if (given := _instance(context.strategy)) != b"{}":
        found["instance"] = _digest(given)
    return found | ({"optuna": optuna_version()} if plan.method == "bayes" else {})


def _instance(strategy: StrategyConfig) -> bytes:
    """Return what an instance has beyond its class and its name."""
    own = msgspec.to_builtins(strategy)
    return msgspec.json.encode({name: own[name] for name in own if name not in ("class", "name")})


def code_digest(kind: type[Strategy[Any]]) -> str:
    """Return a digest of the file of a class."""
    source = inspect.getsourcefile(kind)
    return _digest(Path(source).read_bytes() if source else b"")


def study_name(identity: dict[str, str]) -> str:
    """Return the name of a study that was not given one."""
    return f"{identity['strategy']}-{_digest(msgspec.json.encode(identity))}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class StudyFile:
    """Trials of a study, locked for one process while it is entered.

    The file has one line that says what is searched, then one line for each finished trial. A line
    is written with one call, after its trial has ended. A process that is killed loses the trials
    in progress, and the next one drops a last line that is not complete.
    """

    def __init__(self, folder: Path, name: str, identity: dict[str, str]) -> None:
        if not _NAME.fullmatch(name):
            raise RefusedError(
                f"--study {name!r}: expected letters, digits, '.', '_' and '-', at most 64"
            )
        self.name = name
        self.path = folder / f"{name}.jsonl"
        self.trials: dict[tuple[str, int, int], Trial] = {}
        self._identity = identity
        self._file = -1

    def __enter__(self) -> Self:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            os.close(self._file)
            raise RefusedError(f"study {self.name!r} is run by another process") from None
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def add(self, trial: Trial) -> None:
        self.trials[trial.key] = trial
        self._append(trial)

    def _append(self, value: object) -> None:
        os.write(self._file, msgspec.json.encode(value) + b"\n")

    def _read(self) -> None:
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            os.ftruncate(self._file, len(complete))
        head, *lines = complete.splitlines() or [b""]
        if not head:
            self._append(self._identity)
            return
        try:
            self._compare(msgspec.json.decode(head, type=dict[str, str]))
            for line in lines:
                trial = msgspec.json.decode(line, type=Trial)
                self.trials[trial.key] = trial
        except msgspec.DecodeError as error:
            raise RefusedError(
                f"study {self.name!r}: {self.path} is damaged ({error}); name another --study"
            ) from None

    def _compare(self, stored: dict[str, str]) -> None:
        for key in (*self._identity, *stored):
            ours, theirs = self._identity.get(key, "none"), stored.get(key, "none")
            if ours != theirs:
                raise RefusedError(
                    f"study {self.name!r} has {key} {theirs}, this command {ours}; name another "
                    "--study"
                )


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
