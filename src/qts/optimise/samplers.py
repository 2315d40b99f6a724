"""Samplers: which parameters a search tries next.

A sampler is asked for trials 0, 1, 2, … and gets their values in the same order. What it proposes
depends on its seed and on the values that it got before, and on nothing else.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Iterator
from itertools import product
from typing import Any, Literal, Protocol

from qts.domain import RefusedError
from qts.optimise.space import MAX_VALUES, ParamRange, SearchSpace

Method = Literal["grid", "random", "bayes"]
Params = dict[str, Any]

MAX_DRAWS = 1000  # until a combination that was not tried


class Sampler(Protocol):
    def ask(self) -> Params:
        """Return the parameters of the next trial."""

    def tell(self, value: float | None) -> None:
        """Take the value of the first trial that has none yet; None: it has no value."""


def derive_seed(*parts: object) -> int:
    """Return a seed of 32 bits that depends on every part."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")


def trial_count(method: Method, space: SearchSpace, asked: int | None) -> int:
    """Return the number of trials of a search; refuse a grid that does not fit it."""
    size = space.size
    if method == "grid":
        if size is None:
            endless = next(each for each in space.ranges if each.values is None)
            raise RefusedError(
                f"--method grid: {endless} has no step; expected one, as in {endless}:0.001"
            )
        limit = asked or MAX_VALUES
        if size > limit:
            raise RefusedError(
                f"--method grid: {size:,} combinations, and the limit is {limit:,} trials; name "
                "steps, as in fast=2..20:4, or more --trials"
            )
        return size
    return min(asked or 100, size or MAX_VALUES)


def make_sampler(method: Method, space: SearchSpace, seed: int) -> Sampler:
    if method == "grid":
        return GridSampler(space)
    return RandomSampler(space, seed) if method == "random" else BayesSampler(space, seed)


class GridSampler:
    """Every combination, the last parameter first."""

    def __init__(self, space: SearchSpace) -> None:
        names = [each.name for each in space.ranges]
        values = [each.values or () for each in space.ranges]
        self._cells: Iterator[Params] = (
            dict(zip(names, cell, strict=True)) for cell in product(*values)
        )

    def ask(self) -> Params:
        return next(self._cells)

    def tell(self, value: float | None) -> None:
        """Ignore the value: the order is fixed."""


class RandomSampler:
    """Independent draws; a combination comes again only where new ones are hard to find."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._chance = random.Random(seed)  # noqa: S311 - a search, not a secret
        self._seen: set[tuple[Any, ...]] = set()

    def ask(self) -> Params:
        params: Params = {}
        for _ in range(MAX_DRAWS):
            params = {each.name: each.draw(self._chance) for each in self._space.ranges}
            if tuple(params.values()) not in self._seen:
                break
        self._seen.add(tuple(params.values()))
        return params

    def tell(self, value: float | None) -> None:
        """Ignore the value: draws are independent."""


class BayesSampler:
    """Tree-structured Parzen estimator of Optuna, which tries more where trials were good."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        optuna = _optuna()
        self._optuna = optuna
        self._study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)
        )
        self._space = {each.name: _distribution(optuna, each) for each in space.ranges}
        self._open: deque[Any] = deque()

    def ask(self) -> Params:
        trial = self._study.ask(self._space)
        self._open.append(trial)
        return {
            name: round(value, 12) if isinstance(value, float) else value
            for name, value in trial.params.items()
        }

    def tell(self, value: float | None) -> None:
        trial = self._open.popleft()
        if value is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, value)


def optuna_version() -> str:
    return str(_optuna().__version__)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise RefusedError(
            "--method bayes needs Optuna; pip install 'qts[optimise]', or --method random"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distribution(optuna: Any, each: ParamRange) -> Any:
    kinds = optuna.distributions
    if each.choices:
        return kinds.CategoricalDistribution(each.choices)
    if isinstance(each.low, int):
        return kinds.IntDistribution(each.low, each.high, step=each.step or 1)
    return kinds.FloatDistribution(each.low, each.high, step=each.step)
