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


async def standing(database: Database, broker: str, day: datetime, now: datetime) -> Standing:
    """All of one moment: read in one transaction. `day` is when the trading day began."""
    async with database.transaction(isolation="repeatable read", read_only=True) as tx:
        held = await tx.fetch(
            "SELECT symbol, quantity, average_price FROM position"
            " WHERE broker = $1 AND quantity <> 0",
            broker,
        )
        pending = await tx.fetch(SQL.pending, broker)
        figures = await tx.fetchrow(SQL.day, broker, day, now)
        suspended = await tx.fetch(
            "SELECT symbol FROM market_state WHERE broker = $1 AND trade_status = 'SUSPENDED'",
            broker,
        )
    if figures is None:
        raise AssertionError("a row of counts is always there")
    return Standing(
        {row[0]: Held(row[1], row[2]) for row in held},
        tuple(Pending(row[0], Side(row[1]), row[2], row[3], row[4]) for row in pending),
        figures["orders_today"],
        figures["orders_last_minute"],
        figures["earned"],
        frozenset(row[0] for row in suspended),
    )
