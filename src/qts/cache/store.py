"""Cached values, and the port of the shared key-value store that holds them.

A value is a frozen struct whose fields are those of its Redis hash, with a name, a time of receipt
and a version. It validates itself when created, so an invalid value can neither be stored nor read
back.

Every method of a store is idempotent: a write carries a version, a count an id. A caller whose
reply was lost may repeat the call. `MemoryStore` is the store of tests and of a single process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from decimal import Clamped, Context, Decimal, Inexact, Overflow, Rounded, Subnormal, Underflow
from typing import ClassVar, NoReturn, Protocol, Self

import msgspec

from qts.domain import Clock, OperationError, RefusedError, SystemClock

Fields = dict[str, str]

UNKNOWN_COUNT = -1  # the store has no such count: repeat with the known members
LIMIT_REACHED = -2

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


class StoreBusyError(OperationError):
    """Too many calls in flight on our side; says nothing about the server."""


class StoreWrite(msgspec.Struct, frozen=True):
    """Value to write, with its version among the fields; `sides` makes it an order book."""

    key: str
    ver: int
    ttl_ms: int
    names: tuple[str, ...]
    texts: Sequence[str]
    sides: BookSides | None = None
    layout: str = ""  # all entries of a layout have the same fields

    @classmethod
    def of(
        cls, key: str, ver: int, ttl_ms: int, fields: Fields, sides: BookSides | None = None
    ) -> Self:
        return cls(key, ver, ttl_ms, tuple(fields), tuple(fields.values()), sides)

    @property
    def fields(self) -> Fields:
        return dict(zip(self.names, self.texts, strict=True))


class CountRequest(msgspec.Struct, frozen=True):
    """Member to count once, below a limit, until a time (Unix ms)."""

    key: str
    member: str
    limit: int
    until_ms: int


class Health(msgspec.Struct, frozen=True):
    """Version and load of the server."""

    version: str
    used_memory: int
    max_memory: int  # 0: no limit
    evicted_keys: int
    clients: int
    pool_use: float  # 0 to 1: share of the allowed calls that are in flight


def book_keys(key: str) -> tuple[str, str, str]:
    return key, f"{key}:bid", f"{key}:ask"


class CacheStore(Protocol):
    """Raises UnreachableError without a reply, StoreBusyError, or OperationError on refusal."""

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        """Read hashes in one round trip; None where there is none."""
        ...

    async def read_book(self, key: str, depth: int) -> tuple[Fields, BookSides] | None:
        """Read both sides of a book at one instant."""
        ...

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        """Write each value with its TTL atomically; False where a greater version exists.

        The server may receive the first value before the iterator yields the last.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> int:
        """Delete keys; return how many existed."""
        ...

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        """Return the number of members including this one, LIMIT_REACHED, or UNKNOWN_COUNT.

        `known` members are added first; without them an unknown count is not started.
        """
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys, sorted; scans the whole server without blocking it."""
        ...

    async def health(self) -> Health: ...


Side = list[tuple[int, str]]


class MemoryStore:
    """CacheStore whose calls are atomic and never wait."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._values: dict[
            str, tuple[int, Fields | Side | set[str]]
        ] = {}  # with expiry (monotonic ns)

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        now = self._clock.monotonic_ns()
        return [self._hash(key, now) for key in keys]

    async def read_book(self, key: str, depth: int) -> tuple[Fields, BookSides] | None:
        now = self._clock.monotonic_ns()
        found = self._hash(key, now)
        if found is None:
            return None
        _, bids, asks = (self._get(each, now) for each in book_keys(key))
        bids, asks = (side if isinstance(side, list) else [] for side in (bids, asks))
        return found, BookSides(bids[:depth], asks[:depth])

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        now = self._clock.monotonic_ns()
        return [self._write(entry, now) for entry in entries]

    async def delete(self, keys: Sequence[str]) -> int:
        now = self._clock.monotonic_ns()
        existing = sum(self._get(key, now) is not None for key in keys)
        for key in keys:
            self._values.pop(key, None)
        return existing

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        now = self._clock.monotonic_ns()
        members = self._get(count.key, now)
        if not isinstance(members, set):
            if known is None:
                return UNKNOWN_COUNT
            members = set()
            wall_ms = int(self._clock.now().timestamp() * 1000)
            self._set(count.key, now, count.until_ms - wall_ms, members)
        members.update(known or ())
        if count.member not in members and len(members) >= count.limit:
            return LIMIT_REACHED
        members.add(count.member)
        return len(members)

    async def keys(self, prefix: str) -> list[str]:
        now = self._clock.monotonic_ns()
        matching = [key for key in self._values if key.startswith(prefix)]
        return sorted(key for key in matching if self._get(key, now) is not None)

    async def health(self) -> Health:
        return Health("memory", 0, 0, 0, 1, 0.0)

    def _write(self, entry: StoreWrite, now: int) -> bool:
        stored = self._hash(entry.key, now)
        if stored is not None and int(stored["ver"]) > entry.ver:
            return False
        self._set(entry.key, now, entry.ttl_ms, entry.fields)
        if entry.sides is not None:
            _, bid, ask = book_keys(entry.key)
            self._set(bid, now, entry.ttl_ms, sorted(entry.sides.bids, reverse=True))
            self._set(ask, now, entry.ttl_ms, sorted(entry.sides.asks))
        return True

    def _set(self, key: str, now: int, ttl_ms: int, value: Fields | Side | set[str]) -> None:
        if value or isinstance(value, set):  # Redis has no empty keys
            self._values[key] = (now + ttl_ms * 1_000_000, value)
        else:
            self._values.pop(key, None)

    def _get(self, key: str, now: int) -> Fields | Side | set[str] | None:
        until_ns, value = self._values.get(key, (0, None))
        if value is not None and until_ns <= now:
            del self._values[key]
            return None
        return value

    def _hash(self, key: str, now: int) -> Fields | None:
        found = self._get(key, now)
        return dict(found) if isinstance(found, dict) else None
