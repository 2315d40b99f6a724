"""A venue that has shut us out answers nothing any more: nothing leaves until a person resumes.

Freezing a position: a strategy neither enters nor leaves it until a person has released it.
"""

from __future__ import annotations

from datetime import datetime

from qts.database import Database
from qts.domain import RefusedError
from qts.orders import suspensions
from qts.orders.attempts import AttemptTransitions
from qts.orders.config import OrdersConfig
from qts.orders.context import ExecutionContext
from qts.outbox import EventBus


async def halt_venue(floor: ExecutionContext, text: str) -> None:
    """Switch the account off, tell the fail-safe, and suspend every market: the last so that
    whoever dies in between is followed by one who does it all again."""
    broker = floor.broker.name
    for known in await suspensions.list_suspensions(floor.database, broker):
        if (known.symbol, known.code) == (suspensions.ALL, suspensions.BLOCKED):
            return
    await floor.safety.disable_account(text)
    await floor.safety.raise_code("FS110", text)
    async with floor.database.transaction() as tx:
        moves = AttemptTransitions(tx, floor.bus, floor.config, floor.clock.now())
        await moves.suspend(broker, suspensions.ALL, suspensions.BLOCKED, text)
    floor.ledger.notify(moves.changes)


async def freeze_position(
    database: Database, bus: EventBus, broker: str, symbol: str, why: str, now: datetime
) -> bool:
    """False when it was frozen before; `resume_by_hand` releases it. Its stops stay in force."""
    if not symbol.strip():
        raise RefusedError("a symbol is needed; * freezes the whole venue")
    async with database.transaction() as tx:
        moves = AttemptTransitions(tx, bus, OrdersConfig(), now)
        await moves.suspend(broker, symbol, suspensions.FROZEN, why)
    return bool(moves.changes)
