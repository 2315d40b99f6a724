"""How we stand at a broker: what is held, what is under way, how the day has been."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import msgspec

from qts.database import Database
from qts.domain import Side
from qts.orders.queries import SQL


class Held(msgspec.Struct, frozen=True):
    quantity: Decimal  # signed
    average_price: Decimal


class Pending(msgspec.Struct, frozen=True):
    """An order under way; `price` is its limit, if it has one."""

    symbol: str
    side: Side
    remaining: Decimal
    price: Decimal | None
    unknown: bool


class Standing(msgspec.Struct, frozen=True):
    held: dict[str, Held]
    pending: tuple[Pending, ...]
    orders_today: int
    orders_last_minute: int
    earned_today: Decimal  # realised, after fees
    suspended: frozenset[str]  # * is the whole venue
    frozen: frozenset[str] = frozenset()


async def standing(database: Database, broker: str, day: datetime, now: datetime) -> Standing:
    """All of one moment. `day` is when the trading day began."""
    (row,) = await database.fetch_idempotent(SQL.standing, broker, day, now)
    return Standing(
        {symbol: Held(Decimal(has), Decimal(average)) for symbol, has, average in row["held"]},
        tuple(
            Pending(symbol, Side(side), Decimal(left), Decimal(price) if price else None, unknown)
            for symbol, side, left, price, unknown in row["pending"]
        ),
        row["orders_today"],
        row["orders_last_minute"],
        row["earned"],
        frozenset(row["suspended"]),
        frozenset(row["frozen"]),
    )
