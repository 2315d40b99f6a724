"""Doing a thing once, though its event may come twice."""

from __future__ import annotations

from uuid import UUID

from qts.database import Connection
from qts.outbox.queries import SQL


async def once(tx: Connection, event_id: UUID, handler: str = "") -> bool:
    """True the first time: call it in the transaction of the effect, and do nothing on False.

    Of two at the same moment one waits for the other's transaction to end. Handlers of one
    event that do different things need different names.
    """
    return await tx.execute(SQL.once, handler, event_id) == "INSERT 0 1"
