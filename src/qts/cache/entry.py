"""What every kept value has: a name, checked fields, a moment of receipt and a version.

A value is a frozen struct whose fields are the fields of its Redis hash. It checks itself when
it is made, so that what is wrong can neither be kept nor be read back.
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

# Holds what has at most so many digits, before and after the point, and complains of the rest.
_SHORT = Context(
    prec=DIGITS_MAX,
    Emin=-DIGITS_MAX,
    Emax=DIGITS_MAX,
    traps=[Inexact, Rounded, Overflow, Underflow, Subnormal, Clamped],
)

_ZERO = Decimal(0)
_TOP = Decimal(10) ** DIGITS_MAX
_BOTTOM = -_TOP
_plus = _SHORT.plus

# No colon, brace, space or wildcard: it becomes part of a key.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")


class BookSides(msgspec.Struct, frozen=True):
    """Both sides of a book as (price in units, volume), best first: how it travels."""

    bids: Sequence[tuple[int, str]]
    asks: Sequence[tuple[int, str]]


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Moments are Unix milliseconds. `ver` orders writers: of two values the greater one stays."""

    kind: ClassVar[str]
    prefix: ClassVar[str]
    named_by: ClassVar[str]
    dated_by: ClassVar[str]
    varies: ClassVar[bool] = False
    """Whether two values of this kind may have different fields, or sides."""

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
        """The moment the source gave it: the venue's for a price, the database's for a position."""
        moment: int = getattr(self, self.dated_by)
        return moment

    def check(self) -> None:
        """Refuse what this kind must not hold."""

    @classmethod
    def key(cls, name: str) -> str:
        """The key below the prefix of the settings."""
        return cls.prefix + check_name(cls.kind, name)

    def fields(self) -> dict[str, str]:
        """As a Redis hash."""
        return dict(zip(self.__struct_fields__, self.texts(), strict=True))

    def texts(self) -> list[str]:
        """Of the fields, in their order."""
        # The look for an E here spares most of them a call; it is in words and in 1E+5.
        return [
            text if "E" not in (text := str(value)) else to_text(value)
            for value in msgspec.structs.astuple(self)
        ]

    @classmethod
    def from_fields(cls, fields: dict[str, str]) -> Self:
        return msgspec.convert(fields, cls, strict=False)

    def sides(self) -> BookSides | None:
        """The two sorted sides that an order book has beside its hash."""
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
        right = 0 <= self.happened_at <= VER_MAX
        moment = self.received_at if right else self.happened_at
        raise RefusedError(f"{self.kind} {self.name}: {moment} is no moment in Unix milliseconds")

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
    """A quick look at all of them, none of the amounts below 0; False: look closer.

    A value is made for every tick and every answer of Redis. `finite` and `not_negative` take
    twice as long, and tell which one it is and why.
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
    """Finite, and short when it is written out."""
    if not isinstance(number, Decimal) or not number.is_finite():
        return False
    try:
        _SHORT.plus(number)
    except ArithmeticError:
        return False
    return True


def to_text(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")  # never 1E+5
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
