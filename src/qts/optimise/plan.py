"""Plan of a study, and what makes two studies the same."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import qts
from qts.optimise.folds import Fold
from qts.optimise.samplers import Method, optuna_version
from qts.optimise.space import SearchSpace
from qts.optimise.trial import Metric, TrialContext
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
