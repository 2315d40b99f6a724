"""Base of cached values: a name, validated fields, a time of receipt and a version.

A value is a frozen struct whose fields are those of its Redis hash. It validates itself when
created, so an invalid value can neither be stored nor read back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import (
    Clamped,
    Context,
    Decimal,
    Inexact,
    Overflow,
    Rounded,
    Subnormal,
    Underflow,
)
from typing import ClassVar, NoReturn, Self

import msgspec

from qts.domain import RefusedError

DIGITS_MAX = 40
VER_MAX = 2**53 - 1  # the largest integer that Lua holds exactly

# Traps numbers with more digits than DIGITS_MAX before or after the point.
_CONTEXT = Context(
    prec=DIGITS_MAX,
    Emin=-DIGITS_MAX,
    Emax=DIGITS_MAX,
    traps=[Inexact, Rounded, Overflow, Underflow, Subnormal, Clamped],
)

_ZERO = Decimal(0)
_TOP = Decimal(10) ** DIGITS_MAX
_BOTTOM = -_TOP
_plus = _CONTEXT.plus

# No colon, brace, space or wildcard: it becomes part of a key.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")


class BookSides(msgspec.Struct, frozen=True):
    """Both sides of an order book as (price in units, volume), best first."""

    bids: Sequence[tuple[int, str]]
    asks: Sequence[tuple[int, str]]


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Base struct. Times are Unix milliseconds. Of two versions, the greater `ver` wins."""

    kind: ClassVar[str]
    prefix: ClassVar[str]
    named_by: ClassVar[str]
    dated_by: ClassVar[str]
    varies: ClassVar[bool] = False
    """Whether values of this kind may differ in their fields, or have sides."""

    received_at: int = 0
    ver: int = 0

    def __post_init__(self) -> None:
        if not (
            _NAME.fullmatch(getattr(self, self.named_by))
            and 0 <= self.ver <= VER_MAX
            and 0 <= self.received_at <= VER_MAX
            and 0 <= getattr(self, self.dated_by) <= VER_MAX
        ):
            self._refuse_head()
        self.check()

    @property
    def name(self) -> str:
        name: str = getattr(self, self.named_by)
        return name

    @property
    def happened_at(self) -> int:
        """Time given by the source: the venue for a price, the database for a position."""
        moment: int = getattr(self, self.dated_by)
        return moment

    def check(self) -> None:
        """Raise RefusedError for invalid fields."""

    @classmethod
    def key(cls, name: str) -> str:
        """Return the key without the prefix of the settings."""
        return cls.prefix + check_name(cls.kind, name)

    def fields(self) -> dict[str, str]:
        """Return the Redis hash."""
        return dict(zip(self.__struct_fields__, self.texts(), strict=True))

    def texts(self) -> list[str]:
        """Return the fields as strings, in order."""
        # The test for an E saves most values a call; it occurs in words and in 1E+5.
        return [
            text if "E" not in (text := str(value)) else to_text(value)
            for value in msgspec.structs.astuple(self)
        ]

    @classmethod
    def from_fields(cls, fields: dict[str, str]) -> Self:
        return msgspec.convert(fields, cls, strict=False)

    def sides(self) -> BookSides | None:
        """Return both sides of an order book; None for other kinds."""
        return None

    def finite(self, *names: str) -> None:
        for name in names:
            if not is_plain(number := getattr(self, name)):
                self.refuse(name, number, f"a finite Decimal of at most {DIGITS_MAX} digits")

    def not_negative(self, *names: str) -> None:
        self.finite(*names)
        for name in names:
            if (number := getattr(self, name)) < 0:
                self.refuse(name, number, "0 or more")

    def _refuse_head(self) -> NoReturn:
        check_name(self.kind, self.name)
        if not 0 <= self.ver <= VER_MAX:
            self.refuse("ver", self.ver, f"0 to {VER_MAX}")
        is_valid = 0 <= self.happened_at <= VER_MAX
        moment = self.received_at if is_valid else self.happened_at
        raise RefusedError(f"{self.kind} {self.name}: {moment} is not a time in Unix milliseconds")

    def refuse(self, field: str, value: object, allowed: str) -> NoReturn:
        shown = str(value)[:40]
        raise RefusedError(f"{self.kind} {self.name}: {field} is {shown}; allowed is {allowed}")


def check_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise RefusedError(
            f"{kind} {name[:40]!r} is not a name; allowed are 1 to 64 letters, digits and . _ / -, "
            "a letter or digit first"
        )
    return name


def are_plain(numbers: Sequence[Decimal], amounts: Sequence[Decimal] = ()) -> bool:
    """Return whether all numbers are plain and no amount is below 0, quickly.

    A value is created for every tick and every reply of Redis. `finite` and `not_negative` take
    twice as long, and name the wrong field.
    """
    try:
        for number in numbers:
            if number.__class__ is not Decimal or not _BOTTOM <= number <= _TOP:
                return False
            _plus(number)
        for number in amounts:
            if number.__class__ is not Decimal or not _ZERO <= number <= _TOP:
                return False
            _plus(number)
    except ArithmeticError:
        return False
    return True


def is_plain(number: object) -> bool:
    """Whether a number is a finite Decimal of at most DIGITS_MAX digits."""
    if not isinstance(number, Decimal) or not number.is_finite():
        return False
    try:
        _CONTEXT.plus(number)
    except ArithmeticError:
        return False
    return True


def to_text(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")  # never 1E+5
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
