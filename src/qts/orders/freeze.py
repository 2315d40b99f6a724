"""Freezing a position: a strategy neither enters nor leaves it until a person has released it."""

from __future__ import annotations

from datetime import datetime

from qts.database import Database
from qts.domain import RefusedError
from qts.orders import markets
from qts.orders.attempts import Attempts
from qts.orders.config import OrdersConfig
from qts.outbox import EventBus


async def freeze(
    database: Database, bus: EventBus, broker: str, symbol: str, why: str, now: datetime
) -> bool:
    """False when it was frozen before; `resume_by_hand` releases it. Its stops stay in force."""
    if not symbol.strip():
        raise RefusedError("a symbol is needed; * freezes the whole venue")
    async with database.transaction() as tx:
        moves = Attempts(tx, bus, OrdersConfig(), now)
        await moves.suspend(broker, symbol, markets.FROZEN, why)
    return bool(moves.changes)
