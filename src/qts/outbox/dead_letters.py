"""Dead letters of events consumed from NATS or Kafka, stored in PostgreSQL.

So `qts ops outbox list --status DEAD`, `show`, `edit`, `requeue` and `purge` work on every bus, and
a requeued event goes through the relay again.

    row claimed by the relay ──┐
    row in the archive ────────┼─▶ PROCESSING ─▶ DEAD ─ operator ─▶ PENDING ─▶ relay
    no row: not published here ┘
"""

from __future__ import annotations

import msgspec

from qts.database import Connection, Database
from qts.outbox.bus import Delivery
from qts.outbox.handling import HandlerResult
from qts.outbox.queries import SQL

HOLDER = "dead letters"
# Two consumers that store the same event at the same time must not insert it twice.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('qts dead letter'), hashtext($1::text))"


async def store_dead_letter(database: Database, delivery: Delivery, result: HandlerResult) -> None:
    """Store the event as DEAD; an existing dead letter is left unchanged."""
    async with database.transaction() as tx:
        await tx.execute(_LOCK, str(delivery.event_id))
        row_id = await _row_id(tx, delivery)
        await tx.execute(SQL.lock_for_dead, row_id, HOLDER)
        await tx.execute(SQL.mark_dead, row_id, delivery.attempt, result.code, result.message)


async def _row_id(tx: Connection, delivery: Delivery) -> int:
    # In this order: rows move from the table to the archive; only this function moves them back.
    for query in (SQL.find_live_row, SQL.find_archived_row):
        found: int | None = await tx.fetchval(query, delivery.event_id)
        if found is not None:
            return found
    row_id: int = await tx.fetchval(
        SQL.insert_unpublished,
        delivery.event_id,
        delivery.stream,
        delivery.envelope.type,
        delivery.aggregate_type,
        delivery.aggregate_id,
        msgspec.json.encode(delivery.envelope).decode().replace("\\u0000", "?"),
    )
    return row_id
