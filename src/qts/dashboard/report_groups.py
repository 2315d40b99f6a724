"""Figures of a daily report by strategy and by symbol; those of all names are the account's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from qts.database import Row
from qts.domain import Side
from qts.orders import add_up, rounded_parts

_ZERO = Decimal(0)
_WON = Decimal("0.01")


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one strategy or one symbol; `realised` is after fees."""

    name: str
    fills: int
    trades: int
    bought: Decimal
    sold: Decimal
    fees: Decimal
    realised: Decimal


class StrategyDay(GroupFigures, frozen=True, kw_only=True):
    """Figures of one strategy; what it holds is of the last sample, None where there is none."""

    orders: int = 0
    refusals: dict[str, int] = {}
    unrealised: Decimal | None = None
    exposure: Decimal | None = None


def group_fills(fills: Sequence[tuple[Row, str]], trades: Mapping[str, int]) -> list[GroupFigures]:
    """Return the figures of each name; fees and profit add up to those of the account."""
    names, figures = sorted({name for _, name in fills}), add_up(fills)
    fees = rounded_parts({name: figures[name].fees for name in names})
    realised = rounded_parts({name: figures[name].net for name in names})
    found = []
    for name in names:
        value = dict.fromkeys(Side, _ZERO)
        for row, owner in fills:
            if owner == name:
                value[Side(row["side"])] += row["quantity"] * row["price"]
        found.append(
            GroupFigures(
                name=name,
                fills=figures[name].fills,
                trades=trades.get(name, 0),
                bought=value[Side.BUY].quantize(_WON),
                sold=value[Side.SELL].quantize(_WON),
                fees=fees[name],
                realised=realised[name],
            )
        )
    return found


def strategy_days(
    groups: Sequence[GroupFigures],
    orders: Mapping[str, int],
    refusals: Mapping[str, int],
    held: Mapping[str, tuple[Decimal, Decimal]] | None,
) -> list[StrategyDay]:
    """Return the figures of every strategy that traded, ordered, was refused or holds something."""
    traded = {each.name: each for each in groups}
    refused: dict[str, dict[str, int]] = {}
    for text, count in refusals.items():
        name, _, code = text.rpartition(" ")
        refused.setdefault(name, {})[code] = count
    names = sorted({*traded, *orders, *refused, *(held or {})})
    still = {name: (held or {}).get(name, (_ZERO, _ZERO)) for name in names}
    unrealised = rounded_parts({name: each[0] for name, each in still.items()})
    exposure = rounded_parts({name: each[1] for name, each in still.items()})
    found = []
    for name in names:
        fields = msgspec.structs.asdict(traded.get(name) or _no_fills(name))
        found.append(
            StrategyDay(
                **fields,
                orders=orders.get(name, 0),
                refusals=refused.get(name, {}),
                unrealised=None if held is None else unrealised[name],
                exposure=None if held is None else exposure[name],
            )
        )
    return found


def _no_fills(name: str) -> GroupFigures:
    won = dict.fromkeys(("bought", "sold", "fees", "realised"), _ZERO)
    return GroupFigures(name=name, fills=0, trades=0, **won)
