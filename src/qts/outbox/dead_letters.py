"""Dead letters of events that were handled from another server: kept in PostgreSQL all the same.

Whatever carries the events, `qts outbox list --status DEAD`, `show`, `edit`, `requeue` and `purge`
find them in one place, and a requeued one travels the same way again.

    row still in the relay's hands ─┐
    row in the archive ─────────────┼─▶ PROCESSING ─▶ DEAD ─ by hand ─▶ PENDING ─▶ relay
    no row: not published here ─────┘
"""

from __future__ import annotations

import msgspec

from qts.database import Connection, Database
from qts.outbox.bus import Delivery
from qts.outbox.handling import HandlerResult
from qts.outbox.queries import SQL

HOLDER = "dead letters"
# Two that give up one event at the same time must not make two letters of it.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('qts dead letter'), hashtext($1::text))"


async def store_dead_letter(database: Database, delivery: Delivery, outcome: HandlerResult) -> None:
    """Write the event down as DEAD; a letter that is there already stays as it is."""
    async with database.transaction() as tx:
        await tx.execute(_LOCK, str(delivery.event_id))
        row = await _row(tx, delivery)
        await tx.execute(SQL.lock_for_dead, row, HOLDER)
        await tx.execute(SQL.mark_dead, row, delivery.attempt, outcome.code, outcome.message)


async def _row(tx: Connection, delivery: Delivery) -> int:
    # In this order: a row moves from the one table to the other, never back without us.
    for query in (SQL.find_live_row, SQL.find_archived_row):
        found: int | None = await tx.fetchval(query, delivery.event_id)
        if found is not None:
            return found
    row: int = await tx.fetchval(
        SQL.insert_unpublished,
        delivery.event_id,
        delivery.stream,
        delivery.envelope.type,
        delivery.aggregate_type,
        delivery.aggregate_id,
        msgspec.json.encode(delivery.envelope).decode().replace("\\u0000", "?"),
    )
    return row
