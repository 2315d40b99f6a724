"""The order book of a symbol: best price first on both sides.

It lies in three keys that share a hash tag, so that they change together on a cluster as well:

    book:{005930}        hash         symbol, unit, timestamp, received_at, ver
    book:{005930}:bid    sorted set   score = price in units, member = "price in units:volume"
    book:{005930}:ask    sorted set   the same

A price is kept as a whole number of units (1 for won, 0.00000001 for coins): text such as
101.30 and 101.3 would be two members, and a score of a fraction is not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar, NamedTuple, Self

from qts.cache.value import VER_MAX, Sides, Value, check_name, is_plain, to_text

LEVELS_MAX = 500

_META = ("symbol", "unit", "timestamp", "received_at", "ver")


class Level(NamedTuple):
    price: Decimal
    volume: Decimal


class Book(Value, frozen=True, kw_only=True):
    """`book:{<symbol>}`; levels in any order are sorted when the book is kept."""

    kind: ClassVar[str] = "book"
    prefix: ClassVar[str] = "book:"
    named_by: ClassVar[str] = "symbol"
    dated_by: ClassVar[str] = "timestamp"
    varies: ClassVar[bool] = True

    symbol: str
    bids: tuple[Level, ...]
    asks: tuple[Level, ...]
    timestamp: int
    unit: Decimal = Decimal(1)

    def check(self) -> None:
        self.finite("unit")
        if self.unit <= 0:
            self.refuse("unit", self.unit, "above 0")
        for side, levels in (("bid", self.bids), ("ask", self.asks)):
            for level in levels:
                self._check_level(side, level)
            if len(levels) > LEVELS_MAX:
                self.refuse(side, f"{len(levels)} levels deep", f"{LEVELS_MAX} at most")
            if len({price for price, _ in levels}) < len(levels):
                self.refuse(side, "a price named twice", "each price once")

    def _check_level(self, side: str, level: Level) -> None:
        price, volume = level
        if not is_plain(volume) or volume < 0:
            self.refuse(f"{side} volume", volume, "a finite Decimal, 0 or more")
        if not (is_plain(price) and 0 < price <= self.unit * VER_MAX) or price % self.unit:
            self.refuse(f"{side} price", price, f"a whole multiple of {self.unit}, above 0")

    @classmethod
    def key(cls, name: str) -> str:
        return f"{cls.prefix}{{{check_name(cls.kind, name)}}}"

    def fields(self) -> dict[str, str]:
        return {name: to_text(getattr(self, name)) for name in _META}

    def sides(self) -> Sides:
        """Best price first."""
        bids = sorted(self.bids, reverse=True)
        return Sides(self._in_units(bids), self._in_units(sorted(self.asks)))

    def _in_units(self, levels: Sequence[Level]) -> list[tuple[int, str]]:
        return [(int(price / self.unit), to_text(volume)) for price, volume in levels]

    @classmethod
    def from_parts(cls, fields: dict[str, str], sides: Sides) -> Self:
        unit = Decimal(fields["unit"])

        def levels(side: Sequence[tuple[int, str]]) -> tuple[Level, ...]:
            return tuple(Level(units * unit, Decimal(volume)) for units, volume in side)

        return cls(
            symbol=fields["symbol"],
            unit=unit,
            bids=levels(sides.bids),
            asks=levels(sides.asks),
            timestamp=int(fields["timestamp"]),
            received_at=int(fields["received_at"]),
            ver=int(fields["ver"]),
        )
