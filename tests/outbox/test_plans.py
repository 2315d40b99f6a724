"""Plans and cost of the hot statements, however many events were handled before."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from qts.database import Connection, Database, DatabaseConfig, migrate
from qts.domain import Secret
from qts.outbox import TRADE_COMMAND, TRADE_EVENT, PostgresBus, StreamConfig
from qts.outbox import claims as claims_module
from qts.outbox.bus import SQL
from qts.outbox.claims import BEGINNING, Claims, Horizon
from tests.outbox.kit import (
    QUICK,
    STREAMS,
    Recorder,
    accepted,
    publish,
    running,
    until,
    until_statuses,
)
from tests.services import new_database

TTL = timedelta(seconds=30)
FILL_HOT = """
    INSERT INTO outbox_event (event_id, stream, event_type, aggregate_type, aggregate_id,
                              payload_json, next_retry_at)
    SELECT gen_random_uuid(), $1, 'OrderAccepted', 'Order', n::text,
           jsonb_build_object('schemaVersion', 1, 'eventId', gen_random_uuid(), 'type',
               'OrderAccepted', 'occurredAt', clock_timestamp(), 'traceId', 't', 'payload',
               jsonb_build_object('order', n::text)),
           clock_timestamp() - make_interval(secs => $2::int - n) / 1000
      FROM generate_series(1, $2::int) AS n
"""
FILL_LINES = """
    INSERT INTO outbox_event (event_id, stream, event_type, aggregate_type, aggregate_id,
                              payload_json)
    SELECT gen_random_uuid(), $1, 'OrderAccepted', 'Order', (n % 10)::text,
           jsonb_build_object('schemaVersion', 1, 'eventId', gen_random_uuid(), 'type',
               'OrderAccepted', 'occurredAt', clock_timestamp(), 'traceId', 't', 'payload',
               jsonb_build_object('order', n::text))
      FROM generate_series(1, 100) AS n
"""
FILL_ARCHIVE = """
    INSERT INTO outbox_archive
    SELECT n, gen_random_uuid(), $1, 'OrderAccepted', 'Order', n::text, '{}', 1, 10, day, day,
           'w#1', NULL, NULL, day, day
      FROM generate_series($2::bigint, $3::bigint) AS n,
           LATERAL (SELECT current_date - (n % 360)::int + interval '1 hour' AS day) AS d
"""


async def plan(database: Database, query: str, *arguments: Any) -> str:
    """Return the generic plan, which is used after the first five executions."""
    async with database.connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await Claims(TRADE_EVENT, StreamConfig()).prepare(connection)
        rows = await connection.fetch("EXPLAIN (ANALYZE, BUFFERS OFF) " + query, *arguments)
        await connection.execute("ROLLBACK")
    return "\n".join(row[0] for row in rows)


@pytest.fixture(scope="module", params=["known", "unknown"])
async def filled(
    request: pytest.FixtureRequest,
    postgres_url: Secret,
    postgres_admin: Any,
    migrated_template: str,
) -> AsyncIterator[Database]:
    """Insert 20,000 events; without statistics the planner assumes that there are none.

    A test claims a hundred of them; what it explains is rolled back.
    """
    async with (
        new_database(postgres_url, postgres_admin, migrated_template) as url,
        Database.open(url, DatabaseConfig(pool_min=1, pool_max=5)) as database,
    ):
        if request.param == "unknown":
            await database.execute("VACUUM ANALYZE outbox_event")
            await database.execute("ALTER TABLE outbox_event SET (autovacuum_enabled = false)")
        await database.execute(FILL_HOT, TRADE_EVENT, 20_000)
        await database.execute(FILL_ARCHIVE, TRADE_EVENT, 1, 5000)
        if request.param == "known":
            await database.execute("ANALYZE outbox_event, outbox_archive")
        yield database


async def test_the_claim_reads_the_due_index_and_no_more_than_it_takes(filled: Database) -> None:
    found = await plan(filled, SQL.claim_events, TRADE_EVENT, 100, "w#1", TTL, [""], BEGINNING)
    assert "Index Scan using outbox_event_due" in found
    assert "Tid Scan on outbox_event" in found
    assert "Seq Scan on outbox_event" not in found
    assert "Rows Removed by Filter" not in found


@pytest.mark.parametrize(
    "name", ["complete", "fail", "extend", "release", "claim_stale", "mark_exhausted_dead"]
)
async def test_the_other_hot_statements_use_an_index(filled: Database, name: str) -> None:
    claimed = await Claims(TRADE_EVENT, StreamConfig(), "w").claim(filled, 100, 0)  # type: ignore[arg-type]
    ids, token = [each.id for each in claimed], claimed[0].token
    arguments: dict[str, tuple[Any, ...]] = {
        "complete": (ids, token),
        "fail": (ids, [token] * 100, [1.0] * 100, [False] * 100, ["C"] * 100, ["m"] * 100),
        "extend": (ids, [token], TTL, True),
        "release": (ids, [token]),
        "claim_stale": (TRADE_EVENT, 1, "w#2", TTL, [""]),
        "mark_exhausted_dead": (TRADE_EVENT, [""]),
    }
    found = await plan(filled, getattr(SQL, name), *arguments[name])
    assert "Seq Scan on outbox_event" not in found, found
    assert "Seq Scan on outbox_archive" not in found


async def test_a_claim_writes_no_index(database: Database, database_url: Secret) -> None:
    """Updates are heap-only, which is why the table has its shape."""
    config = DatabaseConfig(pool_min=1, pool_max=8)
    async with (
        Database.open(database_url, config) as own,  # a backend counts for sure as it ends
        PostgresBus.open(own, STREAMS) as bus,
    ):
        await publish(own, bus, *(accepted(str(n)) for n in range(2000)))
        async with running(bus.consumer(TRADE_EVENT, Recorder())):
            await until_statuses(own, {"DONE": 2000})
    updates = {"n_tup_upd": 0, "n_tup_hot_upd": 0}

    async def counted() -> bool:
        row = await database.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
            "WHERE relname = 'outbox_event'"
        )
        updates.update(row.items() if row else {})
        return updates["n_tup_upd"] >= 2000

    await until(counted)
    assert updates["n_tup_hot_upd"] >= 0.95 * updates["n_tup_upd"]


async def _claim_ms(connection: Connection, claims: Claims) -> float:
    began = time.perf_counter()
    claimed = await claims.claim(connection, 100, 0)
    took_ms = (time.perf_counter() - began) * 1e3
    assert len(claimed) == 100
    await claims.release(connection, claimed)
    return took_ms


async def _year_of_rows(database: Database) -> None:
    await database.execute(FILL_HOT, TRADE_EVENT, 99_800)
    for n in range(1, 361):
        await database.execute(
            f"CREATE TABLE year_{n} PARTITION OF outbox_archive FOR VALUES FROM "
            f"(current_date - {n}) TO (current_date - {n - 1})"
        )
    for start in range(0, 10_000_000, 200_000):
        await database.execute(FILL_ARCHIVE, TRADE_EVENT, start + 1, start + 200_000)
    await database.execute("VACUUM ANALYZE outbox_event")
    await database.execute("CHECKPOINT")  # what filling left to be written is not the claim's


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_year_of_rows_does_not_slow_the_claim(
    database: Database, empty_database_url: Secret
) -> None:
    claims = Claims(TRADE_EVENT, StreamConfig(), "w")
    query = (SQL.claim_events, TRADE_EVENT, 100, "w#1", TTL, [""], BEGINNING)
    took: tuple[list[float], list[float]] = ([], [])
    async with Database.open(empty_database_url, DatabaseConfig(pool_max=2)) as young:
        await migrate(young)
        for one in (young, database):
            await one.execute(FILL_HOT, TRADE_EVENT, 200)
        await _year_of_rows(database)
        plans = [_shape(await plan(one, *query)) for one in (young, database)]
        async with young.connection() as empty, database.connection() as full:
            for connection in (empty, full):
                await claims.prepare(connection)
            for _ in range(2000):  # in turns: what else the machine does hits both alike
                took[0].append(await _claim_ms(empty, claims))
                took[1].append(await _claim_ms(full, claims))
    median, p99 = ([statistics.quantiles(one, n=100)[at] for one in took] for at in (49, 98))
    print(f"claim of 100 in ms, empty and a year: median {median}, p99 {p99}")
    assert plans[0] == plans[1]
    assert p99[1] <= 1.5 * p99[0]


def _shape(found: str) -> list[str]:
    return [line.split("(")[0].strip() for line in found.splitlines() if "->" in line]


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_claim_stays_flat_while_an_old_snapshot_is_held(
    database: Database, ordered: bool
) -> None:
    """Measured by the pages it reads, not by time: dead entries must not be scanned again."""
    config = StreamConfig(ordered=ordered)
    claims, horizon = Claims(TRADE_EVENT, config, "w"), Horizon(TRADE_EVENT, ordered)
    reads = []
    async with database.transaction(isolation="repeatable read") as old:
        await old.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await old.fetchval("SELECT count(*) FROM outbox_event")
        async with database.connection() as connection:
            await claims.prepare(connection)
            for turn in range(30):
                await connection.execute(FILL_LINES, TRADE_EVENT)
                await _update(connection, horizon, turn)
                ends = (horizon.due_from, horizon.first_id)
                reads.append(await _pages(connection, config, *ends))
                claimed = await claims.claim(connection, 100, 0, *ends)
                assert len(claimed) == 100
                assert await claims.complete(connection, claimed) == 100
            await connection.execute(FILL_LINES, TRADE_EVENT)
            everything = await _pages(connection, config, BEGINNING, 0)
    assert statistics.median(reads[-5:]) < 1.5 * statistics.median(reads[2:7])
    assert statistics.median(reads[-5:]) * 2 < everything


async def _update(connection: Connection, horizon: Horizon, turn: int) -> None:
    """Update twice: the first call sets the mark that the second one reaches."""
    for half in (0, 1):
        await horizon.update(connection, (2 * turn + half) * 10**9)


async def _pages(connection: Connection, config: StreamConfig, since: Any, first_id: int) -> int:
    """Return the number of pages that a claim reads."""
    plan = await _explain(connection, config, since, first_id)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _rows_skipped(plan: dict[str, Any]) -> int:
    """Return the number of rows that were read and filtered out."""
    inner = sum(_rows_skipped(each) for each in plan.get("Plans", ()))
    return inner + int(plan.get("Rows Removed by Filter", 0))


async def _explain(
    connection: Connection, config: StreamConfig, since: Any, first_id: int
) -> dict[str, Any]:
    """Explain a claim and roll it back."""
    await connection.execute("BEGIN")
    arguments: tuple[Any, ...] = (TRADE_EVENT, 100, "w", TTL, [""])
    query = SQL.claim_ordered if config.ordered else SQL.claim_events
    arguments += (False, since, first_id) if config.ordered else (since,)
    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query
    (row,) = await connection.fetch(query, *arguments)
    await connection.execute("ROLLBACK")
    top: dict[str, Any] = row[0][0]["Plan"]
    return top


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_horizon_waits_for_a_publisher_that_has_not_committed(
    database: Database, bus: PostgresBus, ordered: bool
) -> None:
    horizon = Horizon(TRADE_COMMAND, ordered)
    late, early = (accepted("x", n, stream=TRADE_COMMAND) for n in (0, 1))
    async with database.connection() as connection:
        async with database.transaction() as tx:
            await bus.publish(tx, late)
            await publish(database, bus, early)
            for turn in range(3):
                await _update(connection, horizon, turn)
            before = (horizon.due_from, horizon.first_id)
        claims = Claims(TRADE_COMMAND, StreamConfig(ordered=ordered), "w")
        claimed = await claims.claim(connection, 10, 0, *before)
        assert [each.delivery.event_id for each in claimed] == [
            event.envelope.event_id for event in (late, early)
        ]
        await claims.complete(connection, claimed)
        for turn in range(3, 5):
            await _update(connection, horizon, turn)
        assert horizon.due_from > claimed[-1].due_at
        assert not ordered or horizon.first_id == claimed[-1].id + 1


async def test_a_claim_does_not_scan_claimed_events(database: Database) -> None:
    config = StreamConfig()
    claims, horizon = Claims(TRADE_EVENT, config, "w"), Horizon(TRADE_EVENT, ordered=False)
    await database.execute(FILL_HOT, TRADE_EVENT, 2000)
    async with database.connection() as connection:
        await claims.prepare(connection)
        await _update(connection, horizon, 0)
        for _ in range(10):
            claimed = await claims.claim(connection, 100, 0, horizon.due_from)
            assert len(claimed) == 100
            horizon.advance(claimed[-1].due_at, horizon.closed_to)
        rows_skipped = [
            _rows_skipped(await _explain(connection, config, since, 0))
            for since in (horizon.due_from, BEGINNING)
        ]
    assert rows_skipped == [1, 1000]  # the last one taken, and all of them


async def test_a_claim_does_not_move_the_horizon_past_a_publisher_that_has_not_committed(
    database: Database, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "LATE_COMMIT", timedelta(hours=1))
    claims = Claims(TRADE_EVENT, StreamConfig(), "w")
    horizon = Horizon(TRADE_EVENT, ordered=False)
    late, early = accepted("late"), accepted("early")
    async with database.connection() as connection:
        async with database.transaction() as tx:
            await bus.publish(tx, late)
            await publish(database, bus, early)
            await _update(connection, horizon, 0)
            (claimed,) = await claims.claim(connection, 10, 0, horizon.due_from)
            horizon.advance(claimed.due_at, horizon.closed_to)
        (found,) = await claims.claim(connection, 10, 0, horizon.due_from)
        assert found.delivery.event_id == late.envelope.event_id
        for turn in range(1, 3):
            await _update(connection, horizon, turn)
        horizon.advance(claimed.due_at, horizon.closed_to)
        assert horizon.due_from >= claimed.due_at


async def test_an_event_before_the_horizon_blocks_those_behind_it(
    database: Database, bus: PostgresBus
) -> None:
    """As after the clock was set back: the first event of an aggregate is not scanned."""
    for number in range(2):
        await publish(database, bus, accepted("x", number, stream=TRADE_COMMAND))
    claims = Claims(TRADE_COMMAND, StreamConfig(ordered=True), "w")
    since = await database.fetchval("SELECT max(next_retry_at) FROM outbox_event")
    async with database.connection() as connection:
        assert await claims.claim(connection, 10, 0, since) == []
        assert len(await claims.claim(connection, 10, 0)) == 2


async def test_released_events_are_found_at_once_by_another_worker(database: Database) -> None:
    """They are before the other's horizon; a notification starts a full scan."""
    config = StreamConfig(**{**QUICK, "poll_max_s": 30.0, "lock_ttl_s": 60.0})
    recorder = Recorder()
    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus:
        await publish(database, bus, accepted("first"))
        stopped = Claims(TRADE_EVENT, config, "stopped")
        async with database.connection() as connection:
            unused = await stopped.claim(connection, 10, 0)
            async with running(bus.consumer(TRADE_EVENT, recorder)):
                await publish(database, bus, *(accepted(str(n)) for n in range(20)))
                await until_statuses(database, {"DONE": 20, "PROCESSING": 1})
                await stopped.release(connection, unused)
                await until_statuses(database, {"DONE": 21}, 5)


async def test_an_aggregate_of_a_lost_worker_is_claimed_from_its_first_event(
    database: Database, bus: PostgresBus
) -> None:
    config = StreamConfig(ordered=True, lock_ttl_s=0.2)
    await publish(database, bus, *(accepted("x", n, stream=TRADE_COMMAND) for n in range(3)))
    lost, other = (Claims(TRADE_COMMAND, config, name) for name in ("lost", "other"))
    async with database.connection() as connection:
        line = await lost.claim(connection, 10, 0)
        assert len(line) == 3
        assert await other.claim(connection, 10, 0) == []
        await asyncio.sleep(0.3)  # the lock expires
        for expected in line:
            assert await other.claim(connection, 10, 0) == []
            (taken,) = await other.claim_stale(connection, 1, 0)
            assert taken.id == expected.id
            assert await other.claim_stale(connection, 1, 0) == []
            assert await other.complete(connection, [taken]) == 1
        assert await lost.complete(connection, line) == 0


async def test_an_expired_lock_is_not_extended_by_a_late_heartbeat(
    database: Database, bus: PostgresBus
) -> None:
    """Otherwise two workers would handle events of one aggregate."""
    config = StreamConfig(ordered=True, lock_ttl_s=0.2)
    await publish(database, bus, *(accepted("x", n, stream=TRADE_COMMAND) for n in range(2)))
    late, other = (Claims(TRADE_COMMAND, config, name) for name in ("late", "other"))
    async with database.connection() as connection:
        line = await late.claim(connection, 10, 0)
        assert await late.extend(connection, line) == {each.id for each in line}
        await asyncio.sleep(0.3)  # the lock expires
        (head,) = await other.claim_stale(connection, 1, 0)
        assert head.id == line[0].id
        assert await late.extend(connection, line) == set()


async def test_a_released_event_waits_for_those_of_its_aggregate_in_flight(
    database: Database, bus: PostgresBus
) -> None:
    config = StreamConfig(ordered=True)
    await publish(database, bus, *(accepted("x", n, stream=TRADE_COMMAND) for n in range(2)))
    one, other = (Claims(TRADE_COMMAND, config, name) for name in ("one", "other"))
    async with database.connection() as connection:
        first, second = await one.claim(connection, 10, 0)
        await one.release(connection, [first])
        assert await other.claim(connection, 10, 0) == []
        assert await one.complete(connection, [second]) == 1
        assert [each.id for each in await other.claim(connection, 10, 0)] == [first.id]
