"""Profit by strategy: each fill of an account belongs to one of them, or to the operator.

A fill of an entry belongs to the strategy of its order. Every other fill (of an exit, of a stop, of
an order that is not ours) belongs to the strategy whose entry came last, until the position is
flat. What no strategy entered is the operator's (MANUAL).

Invariant: the figures of all names add up to the account's, to the last digit, also rounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from qts.database import Database, Row
from qts.domain import MANUAL, STOPS, AccountKey, IntentType, Side
from qts.orders.ledger_values import SQL

_ZERO = Decimal(0)
_WON = Decimal("0.01")
_LATEST = timedelta(days=7)  # that a fill is reported after its trade; queries.sql has it, too


class FillOwners:
    """Owners of fills, which are given in the order of their trades."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}  # by symbol, of the positions that are open

    def owner(self, symbol: str, strategy_key: str, intent_type: str, *, is_flat: bool) -> str:
        """Return the owner of a fill; `is_flat`: it leaves no position."""
        owner = self._owners.get(symbol)
        if intent_type == IntentType.ENTRY or owner is None:
            owner = MANUAL if strategy_key in ("", STOPS) else strategy_key
        self._owners[symbol] = owner
        if is_flat:
            del self._owners[symbol]
        return owner


class StrategyFigures(msgspec.Struct):
    """Fills of one strategy, added up; `realised` is before fees."""

    fills: int = 0
    fees: Decimal = _ZERO
    realised: Decimal = _ZERO

    def add(self, realised: Decimal, fee: Decimal) -> None:
        self.fills += 1
        self.realised += realised
        self.fees += fee

    @property
    def net(self) -> Decimal:
        """The realised profit after fees."""
        return self.realised - self.fees


async def load_owned_fills(
    database: Database, key: AccountKey, since: datetime, until: datetime
) -> list[tuple[Row, str]]:
    """Return fills with their owners, the oldest first.

    Of every symbol that was traded or reported in the period, from its last flat moment before it:
    a caller takes those that it counts.
    """
    rows, owners = await database.fetch(SQL.owned_fills, *key, since, until), FillOwners()
    return [(row, _owner(row, owners)) for row in rows]


def _owner(row: Row, owners: FillOwners) -> str:
    if not row["counted"]:  # of an order that is not ours, and of no position
        return MANUAL
    strategy, intent_type = row["strategy"], row["intent_type"]
    return owners.owner(row["symbol"], strategy, intent_type, is_flat=not row["held"])


def add_up(fills: Iterable[tuple[Row, str]]) -> dict[str, StrategyFigures]:
    """Return the figures of each owner."""
    found: dict[str, StrategyFigures] = {}
    for row, owner in fills:
        found.setdefault(owner, StrategyFigures()).add(row["realised_pnl"], row["fee"])
    return found


class FiguresOfDay:
    """Figures of each owner over a day; `update` adds the fills since the last one.

    Invariant: they are those of all fills of the day. A fill that came late, and the first of a
    symbol, whose owner depends on what was traded before, let all of them be read again.
    """

    def __init__(self, database: Database, key: AccountKey, day: datetime) -> None:
        self._database = database
        self._key = key
        self.day = day
        self._until = day + timedelta(days=1)
        self._owners = FillOwners()
        self._held: dict[str, Decimal] = {}  # after the last known fill
        self._count = 0
        self._last: tuple[datetime, str] | None = None
        self.figures: dict[str, StrategyFigures] = {}

    async def update(self) -> None:
        if self._last is None or not await self._add_later(self._last):
            await self._read_all()

    async def _add_later(self, last: tuple[datetime, str]) -> bool:
        """Add later fills; return False if they do not follow from what is known."""
        rows = await self._database.fetch(SQL.later_fills, *self._key, self.day, self._until, *last)
        later = [row for row in rows if row["trade_id"] is not None]
        is_complete = rows[0]["count"] == self._count + len(later)
        if not is_complete or any(row["symbol"] not in self._held for row in later):
            return False
        for row in later:
            symbol, signed = row["symbol"], Side(row["side"]).sign * row["quantity"]
            held = self._held[symbol] = self._held[symbol] + signed
            strategy, intent_type = row["strategy"], row["intent_type"]
            self._add(row, self._owners.owner(symbol, strategy, intent_type, is_flat=not held))
        return True

    async def _read_all(self) -> None:
        rows = await self._database.fetch(SQL.owned_fills, *self._key, self.day, self._until)
        self._owners, self._held, self.figures = FillOwners(), {}, {}
        self._count, self._last = 0, None
        for row in rows:
            owner = _owner(row, self._owners)
            if not row["counted"]:
                continue
            self._held[row["symbol"]] = row["held"]
            if row["traded_at"] >= self.day:
                self._add(row, owner)
            elif row["received_at"] >= self.day and row["traded_at"] >= self.day - _LATEST:
                self._count += 1

    def _add(self, row: Row, owner: str) -> None:
        self.figures.setdefault(owner, StrategyFigures()).add(row["realised_pnl"], row["fee"])
        self._count += 1
        self._last = row["traded_at"], row["trade_id"]


def rounded_parts(parts: Mapping[str, Decimal], unit: Decimal = _WON) -> dict[str, Decimal]:
    """Return the parts in hundredths of a won; their sum is the rounded sum of the parts."""
    found, total, rounded = {}, _ZERO, _ZERO
    for name in sorted(parts):
        total += parts[name]
        found[name] = total.quantize(unit) - rounded
        rounded += found[name]
    return found


class StrategyProfit(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy earned, holds and ordered; in won."""

    realised: Decimal = _ZERO  # after fees
    fees: Decimal = _ZERO
    unrealised: Decimal = _ZERO
    exposure: Decimal = _ZERO  # value of its positions
    fills: int = 0
    orders: int = 0
    refusals: dict[str, int] = {}  # by code

    def __add__(self, other: StrategyProfit) -> StrategyProfit:
        codes = Counter(self.refusals) + Counter(other.refusals)
        fields = [name for name in self.__struct_fields__ if name != "refusals"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in fields}
        return StrategyProfit(**sums, refusals=dict(codes))


def strategy_profits(
    figures: Mapping[str, StrategyFigures],
    held: Mapping[str, tuple[Decimal, Decimal]],
    orders: Mapping[str, int],
    refused: Mapping[tuple[str, str], int],
) -> dict[str, StrategyProfit]:
    """Return the profit of each name in one of these; `held` has unrealised profit and value.

    Figures are rounded so that those of all names add up to the account's.
    """
    names = sorted({*figures, *held, *orders, *(name for name, _ in refused)})
    nothing = StrategyFigures()
    realised = rounded_parts({name: figures.get(name, nothing).net for name in names})
    fees = rounded_parts({name: figures.get(name, nothing).fees for name in names})
    open_pnl = rounded_parts({name: held.get(name, (_ZERO, _ZERO))[0] for name in names})
    exposure = rounded_parts({name: held.get(name, (_ZERO, _ZERO))[1] for name in names})
    return {
        name: StrategyProfit(
            realised=realised[name],
            fees=fees[name],
            unrealised=open_pnl[name],
            exposure=exposure[name],
            fills=figures.get(name, nothing).fills,
            orders=orders.get(name, 0),
            refusals={code: count for (key, code), count in refused.items() if key == name},
        )
        for name in names
    }


def merged_profits(
    accounts: Iterable[Mapping[str, StrategyProfit]],
) -> dict[str, StrategyProfit]:
    """Add the profits of several accounts up, name by name."""
    found: dict[str, StrategyProfit] = {}
    for each in accounts:
        for name, profit in each.items():
            found[name] = found[name] + profit if name in found else profit
    return dict(sorted(found.items()))
