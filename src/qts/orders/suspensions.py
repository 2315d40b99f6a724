"""Suspension of a symbol: no new orders until it is resumed.

ACTIVE ──an outcome is unknown──▶ SUSPENDED (UNKNOWN) ──resolved──▶ ACTIVE
   ├──the venue blocks us───────▶ SUSPENDED (BLOCKED), all symbols ──┐
   ├──the operator──────────────▶ SUSPENDED (BY_HAND) ──the operator─┤
   └──the operator, or a stop
      whose exits fail──────────▶ SUSPENDED (FROZEN) ───the operator─┴▶ ACTIVE

The function market_stop in the database says which orders pass a suspension.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from qts.database import Connection, Database
from qts.domain import AccountKey, RefusedError, name_choices
from qts.orders.queries import SQL

ALL = "*"
UNKNOWN = "UNKNOWN"
BLOCKED = "BLOCKED"
BY_HAND = "BY_HAND"
FROZEN = "FROZEN"


class SymbolSuspension(msgspec.Struct, frozen=True):
    """Why and since when a symbol is suspended."""

    symbol: str  # * is the whole venue
    code: str
    detail: str
    since: datetime


async def suspend_symbol(
    tx: Connection, key: AccountKey, symbol: str, suspension: SymbolSuspension
) -> bool:
    """Suspend a symbol; return False when it was suspended before."""
    why = (suspension.code, suspension.detail, suspension.since)
    return await tx.execute(SQL.suspend_market, *key, symbol, *why) != "INSERT 0 0"


async def resume_symbol(
    tx: Connection, key: AccountKey, symbol: str, only: str | None = None
) -> bool:
    """Resume a symbol; return False when it was not suspended, or not for `only`."""
    return await tx.execute(SQL.resume_market, *key, symbol, only) != "UPDATE 0"


async def resume_resolved(tx: Connection, key: AccountKey, symbol: str) -> bool:
    """Resume unless an outcome is unknown again, checked under the lock of `suspend_symbol`."""
    await tx.execute(SQL.lock_market, *key, symbol)
    if await tx.fetchval(SQL.count_unknown, *key, symbol):
        return False
    return await resume_symbol(tx, key, symbol, only=UNKNOWN)


async def list_suspensions(database: Database, key: AccountKey) -> list[SymbolSuspension]:
    rows = await database.fetch(
        "SELECT symbol, reason_code, detail, suspended_at FROM market_state "
        "WHERE broker = $1 AND account = $2 AND trade_status = 'SUSPENDED' ORDER BY symbol",
        *key,
    )
    return [SymbolSuspension(*row) for row in rows]


async def resume_manually(database: Database, key: AccountKey, symbol: str) -> None:
    """Resume on behalf of the operator; refuse while an attempt is unknown."""
    async with database.transaction() as tx:
        await tx.execute(SQL.lock_market, *key, symbol)
        unknown = await tx.fetchval(SQL.count_unknown, *key, symbol)
        if unknown:
            raise RefusedError(
                f"{symbol} has {unknown} attempts with an unknown outcome; "
                "resolve them first: qts orders list --state UNKNOWN"
            )
        if await resume_symbol(tx, key, symbol):
            return
    suspended = [found.symbol for found in await list_suspensions(database, key)]
    known = name_choices(symbol, suspended)
    raise RefusedError(f"{symbol} is not suspended at {key.broker}; suspended: {known}")
