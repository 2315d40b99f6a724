"""What a search tries: values of parameters, samplers that choose them, folds of the bars."""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError, check_name
from qts.strategies import Strategy

MAX_VALUES = 1_000_000  # of one parameter, and of a grid
_FORMS = "NAME=LOW..HIGH, LOW..HIGH:STEP or A,B,C, as in fast=2..20"


class ParamRange(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one parameter: a list, or the numbers between two bounds."""

    name: str
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None  # None: every number between the bounds

    @property
    def values(self) -> Sequence[Any] | None:
        """Every value in order; None where they are not countable."""
        if self.choices:
            return self.choices
        if self.step is None:
            return None
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        if isinstance(self.low, int) and isinstance(self.step, int):
            return range(self.low, self.low + count * self.step, self.step)
        return [round(self.low + number * self.step, 12) for number in range(count)]

    def draw(self, chance: random.Random) -> Any:
        values = self.values
        return chance.uniform(self.low, self.high) if values is None else chance.choice(values)

    def __str__(self) -> str:
        if self.choices:
            return f"{self.name}={','.join(map(str, self.choices))}"
        is_default = self.step is None or (isinstance(self.low, int) and self.step == 1)
        step = "" if is_default else f":{self.step:g}"
        return f"{self.name}={self.low}..{self.high}{step}"


class SearchSpace(msgspec.Struct, frozen=True):
    """Ranges of parameters, in the order in which they were given."""

    ranges: tuple[ParamRange, ...]

    @classmethod
    def parse(cls, kind: type[Strategy[Any]], lines: Iterable[str]) -> SearchSpace:
        """Return the ranges of `fast=2..20`, `margin=0..0.01:0.001`, `mode=a,b`, `length=5`.

        Raise RefusedError for a parameter that the strategy does not have, a value that it does
        not take, an empty range, and if no parameter has more than one value.
        """
        fields = {field.name: field.type for field in msgspec.structs.fields(kind.Params)}
        found: dict[str, ParamRange] = {}
        for line in lines:
            name, sign, text = (part.strip() for part in line.partition("="))
            if not sign or not name or not text:
                raise RefusedError(f"--param {line!r}: expected {_FORMS}")
            check_name(f"parameter of {kind.key}", name, fields)
            if name in found:
                raise RefusedError(f"--param {line!r}: {name} is given twice")
            found[name] = _parse_range(line, name, text, fields[name])
        space = cls(tuple(found.values()))
        if all(len(each.choices) == 1 for each in space.ranges):
            raise RefusedError(
                f"no parameter has several values; expected --param {_FORMS}; {kind.key} has "
                f"{', '.join(fields) or 'no parameter'}"
            )
        return space

    @property
    def size(self) -> int | None:
        """Number of combinations; None where it is not countable."""
        sizes = [None if each.values is None else len(each.values) for each in self.ranges]
        return None if None in sizes else math.prod(size or 0 for size in sizes)

    @property
    def varied(self) -> list[ParamRange]:
        """Ranges with more than one value."""
        return [each for each in self.ranges if each.values is None or len(each.values) > 1]


def _parse_range(line: str, name: str, text: str, kind: Any) -> ParamRange:
    low_text, dots, rest = text.partition("..")
    if not dots:
        parts = [part.strip() for part in text.split(",")]
        values = tuple(msgspec.to_builtins(_convert(line, part, kind)) for part in parts)
        return ParamRange(name=name, choices=tuple(dict.fromkeys(values)))
    high_text, colon, step_text = rest.partition(":")
    low, high = _convert(line, low_text, kind), _convert(line, high_text, kind)
    for value in (low, high):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusedError(f"--param {line!r}: {name} is no number; expected values, as A,B,C")
    if not low <= high:
        raise RefusedError(f"--param {line!r}: the range is empty; expected LOW up to HIGH")
    if low == high:
        return ParamRange(name=name, choices=(low,))
    is_whole = isinstance(low, int)
    step = _step(line, step_text, is_whole=is_whole) if colon else 1 if is_whole else None
    if step is not None and (high - low) / step >= MAX_VALUES:
        raise RefusedError(f"--param {line!r}: more than {MAX_VALUES:,} values; name a larger step")
    return ParamRange(name=name, low=low, high=high, step=step)


def _convert(line: str, text: str, kind: Any) -> Any:
    """Return the value as the strategy takes it."""
    try:
        value = msgspec.convert(text.strip(), kind, strict=False)
    except msgspec.ValidationError as error:
        raise RefusedError(f"--param {line!r}: {text.strip()!r}: {error}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError(f"--param {line!r}: expected finite numbers")
    return value


def _step(line: str, text: str, *, is_whole: bool) -> float:
    try:
        step = int(text) if is_whole else float(text)
    except ValueError:
        step = 0
    if not 0 < step < math.inf:
        kind = "a whole number" if is_whole else "a number"
        raise RefusedError(f"--param {line!r}: step {text!r}: expected {kind} above 0")
    return step


Method = Literal["grid", "random", "bayes"]
Params = dict[str, Any]

MAX_DRAWS = 1000  # until a combination that was not tried


class Sampler(Protocol):
    """Chooses which parameters a search tries next.

    A sampler is asked for trials 0, 1, 2, … and gets their values in the same order. What it
    proposes depends on its seed and on the values that it got before, and on nothing else.
    """

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


MIN_BARS = 2  # of a stretch, in sample and out of sample


class Fold(msgspec.Struct, frozen=True):
    """Times between bars: in sample (start, split], out of sample (split, end]."""

    number: int
    start: float
    split: float
    end: float


def make_folds(times: npt.NDArray[np.float64], count: int, share: float) -> tuple[Fold, ...]:
    """Return folds over bars that close at `times`; `share` of each is out of sample.

    Parameters are chosen on one stretch and judged on the next:

        bars      ────────────────────────────────────────────▶
        fold 1    in in in in in in │out out│
        fold 2            in in in in in in │out out│
        fold 3                    in in in in in in │out out│

    Out-of-sample stretches follow each other without a gap and without an overlap, and each begins
    after the last bar of the stretch that its parameters were chosen on.
    """
    closes = np.unique(times)
    outside = int(len(closes) * share / (1 - share + count * share))
    inside = len(closes) - count * outside
    if outside < MIN_BARS or inside < MIN_BARS:
        raise RefusedError(
            f"--walk-forward {count}: {len(closes)} bars are too few; a fold has {inside} in "
            f"sample and {outside} out of sample, expected at least {MIN_BARS} of each"
        )
    before = np.concatenate([[closes[0] - 1.0], closes])  # before[n] is the end of n bars
    return tuple(
        Fold(
            number,
            float(before[number * outside]),
            float(before[number * outside + inside]),
            float(before[(number + 1) * outside + inside]),
        )
        for number in range(count)
    )
