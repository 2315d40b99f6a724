"""Values that the parameters of a strategy may take in a search."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

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
