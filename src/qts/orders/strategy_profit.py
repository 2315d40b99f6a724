"""Profit by strategy: each fill of an account belongs to one of them, or to the operator.

A fill of an entry belongs to the strategy of its order. Every other fill (of an exit, of a stop, of
an order that is not ours) belongs to the strategy whose entry came last, until the position is
flat. What no strategy entered is the operator's (MANUAL).

Invariant: the figures of all names add up to the account's, to the last digit, also rounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

import msgspec

from qts.database import Database, Row
from qts.domain import MANUAL, STOPS, AccountKey, IntentType
from qts.orders.queries import SQL

_ZERO = Decimal(0)
_WON = Decimal("0.01")


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
