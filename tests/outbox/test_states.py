"""The database itself allows the agreed changes of state and no other."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from qts.database import Database
from qts.outbox import PostgresBus
from qts.outbox.admin import rotate_partitions
from tests.outbox.kit import accepted, publish

AS = {
    "PENDING": "status = 'PENDING', locked_by = NULL, locked_until = NULL, processed_at = NULL",
    "PROCESSING": "status = 'PROCESSING', attempt_count = attempt_count + 1, locked_by = 'b', "
    "locked_until = clock_timestamp() + '1 min', processed_at = NULL",
    "DEAD": "status = 'DEAD', locked_by = NULL, locked_until = NULL, "
    "processed_at = clock_timestamp()",
    "DONE": "status = 'DONE', locked_by = NULL, locked_until = NULL",
}
ALLOWED = {
    ("PENDING", "PENDING"),
    ("PENDING", "PROCESSING"),
    ("PROCESSING", "PENDING"),
    ("PROCESSING", "DEAD"),
    ("DEAD", "DEAD"),
}
REACH = {
    "PENDING": [],
    "PROCESSING": ["PROCESSING"],
    "DEAD": ["PROCESSING", "DEAD"],
}


async def bring(database: Database, bus: PostgresBus, state: str) -> None:
    await publish(database, bus, accepted())
    for step in REACH[state]:
        await database.execute(f"UPDATE outbox_event SET {AS[step]}")  # noqa: S608 - our own words


@pytest.mark.parametrize(("before", "after"), list(itertools.product(REACH, AS)))
async def test_only_the_agreed_changes_of_state_are_possible(
    database: Database, bus: PostgresBus, before: str, after: str
) -> None:
    await bring(database, bus, before)
    change = database.execute(f"UPDATE outbox_event SET {AS[after]}")  # noqa: S608 - our own words
    if (before, after) in ALLOWED:
        assert await change == "UPDATE 1"
    else:
        with pytest.raises(asyncpg.CheckViolationError):
            await change


async def test_a_lock_that_has_not_run_out_cannot_be_taken(
    database: Database, bus: PostgresBus
) -> None:
    await bring(database, bus, "PROCESSING")
    take = (
        "UPDATE outbox_event SET locked_by = 'c', attempt_count = attempt_count + 1, "
        "locked_until = clock_timestamp() + '1 min'"
    )
    with pytest.raises(asyncpg.CheckViolationError):
        await database.execute(take)
    await database.execute(
        "UPDATE outbox_event SET locked_until = clock_timestamp() - '1s'::interval"
    )
    assert await database.execute(take) == "UPDATE 1"


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO outbox_event (event_id, stream, event_type, aggregate_type, aggregate_id, "
        "payload_json, attempt_count) VALUES (gen_random_uuid(), 's', 't', 'a', '1', '{}', 1)",
        "DELETE FROM outbox_event",
        "UPDATE outbox_event SET payload_json = '{}'",
        "UPDATE outbox_event SET stream = 'other'",
        "UPDATE outbox_event SET event_id = gen_random_uuid()",
        "UPDATE outbox_event SET attempt_count = 11",
        "UPDATE outbox_event SET locked_by = 'me'",
        "UPDATE outbox_event SET processed_at = clock_timestamp()",
    ],
)
async def test_a_waiting_event_cannot_be_forged_or_lost(
    database: Database, bus: PostgresBus, change: str
) -> None:
    await bring(database, bus, "PENDING")
    with pytest.raises(asyncpg.CheckViolationError):
        await database.execute(change)
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 1


async def test_a_dead_letter_comes_back_only_with_all_its_attempts(
    database: Database, bus: PostgresBus
) -> None:
    await bring(database, bus, "DEAD")
    with pytest.raises(asyncpg.CheckViolationError):
        await database.execute(f"UPDATE outbox_event SET {AS['PENDING']}")  # noqa: S608
    await database.execute(f"UPDATE outbox_event SET {AS['PENDING']}, attempt_count = 0")  # noqa: S608


async def test_days_are_made_ahead_and_dropped_behind(database: Database) -> None:
    old, kept = (datetime.now(UTC) - timedelta(days=days) for days in (40, 20))
    for day in (old, kept):
        await database.execute(
            f"CREATE TABLE outbox_archive_{day:%Y%m%d} PARTITION OF outbox_archive "
            f"FOR VALUES FROM ('{day:%Y-%m-%d} 00:00Z') TO ('{day:%Y-%m-%d} 24:00Z')"
        )
    for moment, number in ((old, 1), (kept, 2)):
        await database.execute(
            "INSERT INTO outbox_archive SELECT $2, gen_random_uuid(), 's', 't', 'a', '1', '{}', 1, "
            "1, $1, NULL, 'w', NULL, NULL, $1, $1",
            moment,
            number,
        )
        await database.execute(
            "INSERT INTO outbox_event_id SELECT event_id, processed_at FROM outbox_archive "
            "WHERE id = $1",
            number,
        )
    assert await rotate_partitions(database, 30) == [f"outbox_archive_{old:%Y%m%d}"]
    assert await database.fetchval("SELECT array_agg(id) FROM outbox_event_all") == [2]
    assert await database.fetchval("SELECT count(*) FROM outbox_event_id") == 1
    rows = await database.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits"
        " WHERE inhparent = 'outbox_archive'::regclass"
    )
    found = {row["name"] for row in rows}
    ahead = {f"outbox_archive_{old + timedelta(days=40 + days):%Y%m%d}" for days in range(8)}
    assert {f"outbox_archive_{kept:%Y%m%d}", *ahead} <= found
    assert f"outbox_archive_{old:%Y%m%d}" not in found
    assert await rotate_partitions(database, 30) == []


async def test_a_day_whose_rows_lie_in_the_rest_is_left_there(database: Database) -> None:
    today = f"outbox_archive_{datetime.now(UTC):%Y%m%d}"
    await database.execute(f"DROP TABLE {today}")
    insert = (
        "INSERT INTO outbox_archive SELECT 1, gen_random_uuid(), 's', 't', 'a', '1', '{}', 1, 1, "
        "clock_timestamp(), NULL, 'w', NULL, NULL, clock_timestamp(), clock_timestamp()"
    )
    await database.execute(insert)
    await rotate_partitions(database, 30)
    await database.execute(insert)
    assert await database.fetchval("SELECT count(*) FROM outbox_archive_rest") == 2
