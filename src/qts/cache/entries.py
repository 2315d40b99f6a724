"""Kinds of cached values: order book, order, position, price, risk, parameters, trade ids.

An order book uses three keys with one hash tag, so they change together on a cluster as well:

    book:{005930}        hash         symbol, unit, timestamp, received_at, ver
    book:{005930}:bid    sorted set   score = price in units, member = "price in units:volume"
    book:{005930}:ask    sorted set   the same

A price is a whole number of units (1 for won, 0.00000001 for coins): the texts 101.30 and 101.3
would be two members, and a fractional score is not exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import ClassVar, NamedTuple, Self

import msgspec

from qts.cache.store import VER_MAX, BookSides, CacheEntry, are_plain, check_name, is_plain, to_text

LEVELS_MAX = 500

_META = ("symbol", "unit", "timestamp", "received_at", "ver")


class CachedLevel(NamedTuple):
    price: Decimal
    volume: Decimal


class CachedOrderBook(CacheEntry, frozen=True, kw_only=True):
    """`book:{<symbol>}`; levels may be given in any order."""

    kind: ClassVar[str] = "book"
    prefix: ClassVar[str] = "book:"
    named_by: ClassVar[str] = "symbol"
    dated_by: ClassVar[str] = "timestamp"
    varies: ClassVar[bool] = True

    symbol: str
    bids: tuple[CachedLevel, ...]
    asks: tuple[CachedLevel, ...]
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

    def _check_level(self, side: str, level: CachedLevel) -> None:
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

    def sides(self) -> BookSides:
        """Return both sides, best price first."""
        bids = sorted(self.bids, reverse=True)
        return BookSides(self._in_units(bids), self._in_units(sorted(self.asks)))

    def _in_units(self, levels: Sequence[CachedLevel]) -> list[tuple[int, str]]:
        return [(int(price / self.unit), to_text(volume)) for price, volume in levels]

    @classmethod
    def from_parts(cls, fields: dict[str, str], sides: BookSides) -> Self:
        unit = Decimal(fields["unit"])

        def levels(side: Sequence[tuple[int, str]]) -> tuple[CachedLevel, ...]:
            return tuple(CachedLevel(units * unit, Decimal(volume)) for units, volume in side)

        return cls(
            symbol=fields["symbol"],
            unit=unit,
            bids=levels(sides.bids),
            asks=levels(sides.asks),
            timestamp=int(fields["timestamp"]),
            received_at=int(fields["received_at"]),
            ver=int(fields["ver"]),
        )


_STATUS = re.compile(r"[A-Z][A-Z_]{0,31}")


class CachedOrder(CacheEntry, frozen=True, kw_only=True):
    """`ord:<order_id>`."""

    kind: ClassVar[str] = "order"
    prefix: ClassVar[str] = "ord:"
    named_by: ClassVar[str] = "order_id"
    dated_by: ClassVar[str] = "last_update"

    order_id: str
    status: str
    filled_qty: Decimal
    pending_qty: Decimal
    avg_fill_price: Decimal
    last_update: int

    def check(self) -> None:
        if not _STATUS.fullmatch(self.status):
            self.refuse("status", repr(self.status), "a word such as PARTIALLY_FILLED")
        if not are_plain((), (self.filled_qty, self.pending_qty, self.avg_fill_price)):
            self.not_negative("filled_qty", "pending_qty", "avg_fill_price")


class CachedPosition(CacheEntry, frozen=True, kw_only=True):
    """`pos:<symbol>`. A negative quantity is a short position."""

    kind: ClassVar[str] = "position"
    prefix: ClassVar[str] = "pos:"
    named_by: ClassVar[str] = "symbol"
    dated_by: ClassVar[str] = "updated_at"

    symbol: str
    qty: Decimal
    avg_price: Decimal
    unrealized_pnl: Decimal
    exposure_pct: Decimal
    updated_at: int

    def check(self) -> None:
        signed = self.qty, self.unrealized_pnl, self.exposure_pct
        if not are_plain(signed, (self.avg_price,)):
            self.finite("qty", "unrealized_pnl", "exposure_pct")
            self.not_negative("avg_price")


class CachedPrice(CacheEntry, frozen=True, kw_only=True):
    """`price:<symbol>`. 0 stands for an empty side, as at a price limit."""

    kind: ClassVar[str] = "price"
    prefix: ClassVar[str] = "price:"
    named_by: ClassVar[str] = "symbol"
    dated_by: ClassVar[str] = "timestamp"

    symbol: str
    bid: Decimal
    ask: Decimal
    last: Decimal
    volume: Decimal
    timestamp: int

    def check(self) -> None:
        if not are_plain((), (self.bid, self.ask, self.last, self.volume)):
            self.not_negative("bid", "ask", "last", "volume")


class CachedRisk(CacheEntry, frozen=True, kw_only=True):
    """`risk:<account>`; the default account is called `account`."""

    kind: ClassVar[str] = "risk"
    prefix: ClassVar[str] = "risk:"
    named_by: ClassVar[str] = "account"
    dated_by: ClassVar[str] = "updated_at"

    account: str = "account"
    exposure_used: Decimal
    daily_pnl: Decimal
    trade_count: int
    remaining_limit: Decimal
    max_exposure_pct: Decimal
    daily_loss_limit: Decimal
    updated_at: int
    open_symbols: int = 0  # held or being bought

    def check(self) -> None:
        signed = self.exposure_used, self.daily_pnl, self.remaining_limit, self.daily_loss_limit
        if not are_plain(signed, (self.max_exposure_pct,)):
            self.finite("exposure_used", "daily_pnl", "remaining_limit", "daily_loss_limit")
            self.not_negative("max_exposure_pct")
        for name in ("trade_count", "open_symbols"):
            if not 0 <= getattr(self, name) <= VER_MAX:
                self.refuse(name, getattr(self, name), "0 or more")


_OWN_FIELDS = ("strategy_id", "active", "updated_at", "received_at", "ver")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
PARAMETERS_MAX = 256
CHARACTERS_MAX = 65_536


class CachedStrategyParams(CacheEntry, frozen=True, kw_only=True):
    """`strat:<strategy_id>`. Each parameter is a field of the hash, beside the common ones."""

    kind: ClassVar[str] = "strategy"
    prefix: ClassVar[str] = "strat:"
    named_by: ClassVar[str] = "strategy_id"
    dated_by: ClassVar[str] = "updated_at"
    varies: ClassVar[bool] = True

    strategy_id: str
    active: bool
    params: Mapping[str, str]
    updated_at: int

    def check(self) -> None:
        if len(self.params) > PARAMETERS_MAX:
            self.refuse("params", f"{len(self.params)} long", f"{PARAMETERS_MAX} at most")
        for parameter, text in self.params.items():
            if parameter in _OWN_FIELDS or not _PARAMETER.fullmatch(parameter):
                self.refuse("a parameter", repr(parameter), f"a plain word, none of {_OWN_FIELDS}")
            if not isinstance(text, str) or not _is_unicode(text):
                self.refuse(parameter, repr(text), "text that UTF-8 can write")
        size = sum(map(len, self.params.values()))
        if size > CHARACTERS_MAX:
            self.refuse("params", f"{size} characters", f"{CHARACTERS_MAX} at most")

    def fields(self) -> dict[str, str]:
        return {own: to_text(getattr(self, own)) for own in _OWN_FIELDS} | dict(self.params)

    @classmethod
    def from_fields(cls, fields: dict[str, str]) -> Self:
        own = {name: text for name, text in fields.items() if name in _OWN_FIELDS}
        params = {name: text for name, text in fields.items() if name not in _OWN_FIELDS}
        return msgspec.convert({**own, "params": params}, cls, strict=False)


class TradeIds(CacheEntry, frozen=True, kw_only=True):
    """Trade ids of a day in the database; its name is `<account>/<day>`."""

    kind: ClassVar[str] = "trades"
    prefix: ClassVar[str] = "daily_trade_count:"
    named_by: ClassVar[str] = "day"
    dated_by: ClassVar[str] = "received_at"

    day: str
    ids: frozenset[str]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
