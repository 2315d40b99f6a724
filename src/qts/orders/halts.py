"""What only the operator ends: a halt of a venue, an order that was given up, a freeze."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, RefusedError
from qts.orders import suspensions
from qts.orders.attempts import AttemptTransitions
from qts.orders.config import OrdersConfig
from qts.orders.context import ExecutionContext
from qts.outbox import EventBus

log = telemetry.logger("orders")


async def halt_venue(context: ExecutionContext, text: str) -> None:
    """Disable the account, raise FS110 and suspend every symbol, last: a crash repeats it all."""
    key = context.broker.key
    for known in await suspensions.list_suspensions(context.database, key):
        if (known.symbol, known.code) == (suspensions.ALL, suspensions.BLOCKED):
            return
    await context.safety.disable_account(text)
    await context.safety.raise_code("FS110", text)
    async with context.database.transaction() as tx:
        transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
        await transitions.suspend(key, suspensions.ALL, suspensions.BLOCKED, text)
    context.ledger.notify(transitions.changes)


async def raise_ghost(
    context: ExecutionContext, order_id: str, attempt_id: UUID, status: str
) -> None:
    """Raise FS043 for an order at the venue whose attempt was given up, with what to do."""
    text = (
        f"order {order_id} is at the venue, and attempt {attempt_id} is {status}; check it there, "
        f"then run: qts orders resolve {attempt_id} --as {order_id}, and qts failsafe release"
    )
    log.error("order of an attempt that was given up", reason=text)
    await context.safety.raise_once("FS043", text)


async def freeze_position(
    database: Database, bus: EventBus, key: AccountKey, symbol: str, why: str, now: datetime
) -> bool:
    """Freeze a position; its stops stay in force. Return False when it was frozen before."""
    if not symbol.strip():
        raise RefusedError("expected a symbol; * freezes the whole venue")
    async with database.transaction() as tx:
        transitions = AttemptTransitions(tx, bus, OrdersConfig(), now)
        await transitions.suspend(key, symbol, suspensions.FROZEN, why)
    return bool(transitions.changes)
