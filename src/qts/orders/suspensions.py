"""Whether new orders of a market may leave.

ACTIVE ──an outcome is unknown──▶ SUSPENDED (UNKNOWN) ──resolved──▶ ACTIVE
   ├──the venue shut us out─────▶ SUSPENDED (BLOCKED), all markets ──┐
   ├──a person──────────────────▶ SUSPENDED (BY_HAND) ──a person─────┤
   └──a person, or a stop that
      cannot leave──────────────▶ SUSPENDED (FROZEN) ───a person─────┴▶ ACTIVE

What passes a suspension all the same is said by market_stop, in the database.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from qts.database import Connection, Database
from qts.domain import RefusedError
from qts.orders.queries import SQL

ALL = "*"
UNKNOWN = "UNKNOWN"
BLOCKED = "BLOCKED"
BY_HAND = "BY_HAND"
FROZEN = "FROZEN"


class SymbolSuspension(msgspec.Struct, frozen=True):
    symbol: str  # * is the whole venue
    code: str
    detail: str
    since: datetime


async def suspend_symbol(tx: Connection, broker: str, symbol: str, why: SymbolSuspension) -> bool:
    """False when it was suspended before."""
    told = await tx.execute(SQL.suspend_market, broker, symbol, why.code, why.detail, why.since)
    return told != "INSERT 0 0"


async def resume_symbol(tx: Connection, broker: str, symbol: str, only: str | None = None) -> bool:
    """False when it was not suspended, or for another reason than `only`."""
    return await tx.execute(SQL.resume_market, broker, symbol, only) != "UPDATE 0"


async def resume_resolved(tx: Connection, broker: str, symbol: str) -> bool:
    """Unless an outcome is unknown again: asked with the market locked, as `suspend` locks it."""
    await tx.execute(SQL.lock_market, broker, symbol)
    if await tx.fetchval(SQL.count_unknown, broker, symbol):
        return False
    return await resume_symbol(tx, broker, symbol, only=UNKNOWN)


async def list_suspensions(database: Database, broker: str) -> list[SymbolSuspension]:
    rows = await database.fetch(
        "SELECT symbol, reason_code, detail, suspended_at FROM market_state "
        "WHERE broker = $1 AND trade_status = 'SUSPENDED' ORDER BY symbol",
        broker,
    )
    return [SymbolSuspension(*row) for row in rows]


async def is_tradable(database: Database, broker: str, symbol: str) -> bool:
    """Whether entries of this market may leave."""
    return await database.fetchrow(SQL.suspended, broker, symbol) is None


async def resume_manually(database: Database, broker: str, symbol: str) -> None:
    """A person has looked; an attempt that is still unknown keeps its market shut."""
    async with database.transaction() as tx:
        await tx.execute(SQL.lock_market, broker, symbol)
        unknown = await tx.fetchval(SQL.count_unknown, broker, symbol)
        if unknown:
            raise RefusedError(
                f"{symbol} has {unknown} attempts whose outcome is unknown; "
                "resolve them first: qts orders list --state UNKNOWN"
            )
        if not await resume_symbol(tx, broker, symbol):
            raise RefusedError(f"{symbol} is not suspended at {broker}")
