"""The pool: its bounds, its timeouts, and dead connections."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import OperationError, OutcomeUnknownError, Secret, UnreachableError
from tests.database.backends import backends, end_backends, end_backends_unnoticed, until
from tests.database.relay import Relay

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = $1"


async def test_a_pool_never_opens_more_than_its_bound(
    database_url: Secret, postgres_admin: Any
) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=3)
    async with Database.open(database_url, config) as database:
        await asyncio.gather(*(database.fetchval("SELECT pg_sleep(0.02)") for _ in range(12)))
        assert await backends(postgres_admin, database_url) == 3
    assert await backends(postgres_admin, database_url) == 0


async def test_a_caller_beyond_the_bound_fails_after_the_timeout(database_url: Secret) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=1, connect_timeout_s=1.0)
    async with Database.open(database_url, config) as database:
        async with database.transaction():
            with pytest.raises(UnreachableError, match=r"all 1 connections .* database\.pool_max"):
                await database.fetchval("SELECT 1")
        assert await database.fetchval("SELECT 1") == 1


async def test_reserved_connections_do_not_wait_for_the_pool(
    database_url: Secret, postgres_admin: Any
) -> None:
    """Their statements stay prepared with a generic plan, and survive the end of their sessions."""
    config = DatabaseConfig(pool_min=1, pool_max=1, connect_timeout_s=1.0)
    async with Database.open(database_url, config) as database, database.reserved(1) as reserved:
        async with database.transaction():  # the only connection of the pool
            for _ in range(3):
                assert (await reserved.fetch_idempotent("SELECT $1::int", 1))[0][0] == 1
            plans = "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
            (found,) = await reserved.fetch_idempotent(plans + " WHERE statement ~ '::int$'")
            assert tuple(found) == (3, 0)
        for name, value in (("synchronous_commit", "on"), ("statement_timeout", "30s")):
            assert await reserved.fetchval("SELECT current_setting($1)", name) == value
        await end_backends(postgres_admin, database_url)
        assert (await reserved.fetch_idempotent("SELECT $1::int", 2))[0][0] == 2


async def test_what_a_caller_starts_with_a_result_comes_before_the_release(
    database_url: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    released = asyncio.Event()

    async def act() -> None:
        order.append("request")

    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=1)) as database:
        release = database._release

        async def record(connection: Any) -> None:
            order.append("release")
            await release(connection)
            released.set()

        monkeypatch.setattr(database, "_release", record)
        await database.fetch_idempotent("SELECT 1")
        request = asyncio.create_task(act())
        await released.wait()
        await request
    assert order == ["request", "release"]


async def test_a_long_statement_is_ended_and_the_connection_lives_on(database_url: Secret) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=1, statement_timeout_s=0.5)
    async with Database.open(database_url, config) as database:
        backend = await database.fetchval("SELECT pg_backend_pid()")
        with pytest.raises(OperationError, match=r"statement_timeout_s is 0\.5"):
            await database.execute("SELECT pg_sleep(10)")
        with pytest.raises(OperationError, match="statement timeout"):
            async with database.transaction() as connection:
                await connection.execute("SELECT pg_sleep(10)")
        assert await database.fetchval("SELECT pg_backend_pid()") == backend


async def test_the_time_limit_comes_back_after_a_session_changed_it(database_url: Secret) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=1, statement_timeout_s=7)
    async with Database.open(database_url, config) as database:
        await database.execute("SET statement_timeout = 0")
        assert await database.fetchval("SELECT current_setting('statement_timeout')") == "7s"


async def test_what_a_block_sets_and_locks_ends_with_it(database_url: Secret) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=1, statement_timeout_s=7)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    async with Database.open(database_url, config) as database:
        async with database.connection() as connection:
            await connection.execute("SET statement_timeout = 0; SELECT pg_advisory_lock(1)")
            assert await connection.fetchval(locks) == 1
        assert await database.fetchval(locks) == 0
        async with database.transaction(durable=True) as tx:
            await tx.execute("SET LOCAL statement_timeout = 0")
            assert await tx.fetchval("SELECT current_setting('synchronous_commit')") == "on"
        assert await database.fetchval("SELECT current_setting('statement_timeout')") == "7s"


async def test_sessions_have_the_application_name_and_utc(database: Database) -> None:
    row = await database.fetchrow(
        "SELECT current_setting('application_name') AS name, current_setting('timezone') AS zone"
    )
    assert row is not None
    assert dict(row.items()) == {"name": database.application, "zone": "UTC"}
    assert database.application.startswith("qts ")


async def test_ping_returns_latency_and_version(database: Database) -> None:
    ping = await database.ping()
    assert 0 < ping.latency_ms < 5000
    assert int(ping.server_version.split(".")[0]) >= 15


@pytest.mark.parametrize("how", ["single", "idempotent", "transaction"])
async def test_connections_that_died_in_the_pool_are_replaced(
    database: Database, database_url: Secret, postgres_url: Secret, how: str
) -> None:
    await asyncio.gather(*(database.fetchval("SELECT pg_sleep(0.02)") for _ in range(5)))
    assert end_backends_unnoticed(postgres_url, database_url) == 5

    async def call() -> Any:
        if how == "single":
            return await database.fetchval("SELECT 1")
        if how == "idempotent":
            return (await database.fetch_idempotent("SELECT 1"))[0][0]
        async with database.transaction() as connection:
            return await connection.fetchval("SELECT 1")

    assert await asyncio.gather(*(call() for _ in range(10))) == [1] * 10


@pytest.mark.parametrize("how", ["fetch", "fetch_idempotent"])
async def test_connections_that_fell_silent_in_the_pool_are_replaced(
    database_url: Secret, how: str
) -> None:
    config = DatabaseConfig(pool_min=3, pool_max=3, connect_timeout_s=1.0)
    async with Relay.to(database_url) as relay, Database.open(relay.url, config) as database:
        assert relay.fall_silent() == 3
        assert len(await getattr(database, how)("SELECT 1")) == 1
        assert await asyncio.gather(*(database.fetchval("SELECT 1") for _ in range(3))) == [1] * 3


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("statement", OutcomeUnknownError),
        ("block", UnreachableError),
        ("commit", OutcomeUnknownError),
    ],
)
async def test_a_silent_server_counts_as_lost(
    database_url: Secret, when: str, expected: type[Exception]
) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=1, connect_timeout_s=0.5, statement_timeout_s=2.0)
    async with Relay.to(database_url) as relay, Database.open(relay.url, config) as database:

        async def run() -> None:
            if when == "statement":
                asyncio.get_running_loop().call_later(0.05, relay.fall_silent)
                await database.fetchval("SELECT pg_sleep(1.8)")
                return
            async with database.transaction() as connection:
                await connection.fetchval("SELECT 1")
                relay.fall_silent()
                if when == "block":
                    await connection.fetchval("SELECT 2")

        with pytest.raises(expected, match="no answer in time") as raised:
            await run()
        assert type(raised.value) is expected
        assert await database.fetchval("SELECT 3") == 3


async def test_a_statement_cut_short_says_that_its_outcome_is_unknown(
    database: Database, database_url: Secret, postgres_admin: Any
) -> None:
    waiting = asyncio.create_task(database.fetchval("SELECT pg_sleep(60)"))
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = $1"

    async def sleeps() -> bool:
        name = database.where.rpartition("/")[2]
        return bool(await postgres_admin.fetchval(asleep, name) == 1)

    await until(sleeps)
    await end_backends(postgres_admin, database_url)
    with pytest.raises(OutcomeUnknownError):
        await waiting


async def test_an_idempotent_statement_is_sent_again_when_interrupted(
    database: Database, database_url: Secret, postgres_admin: Any
) -> None:
    """The first attempt is terminated while it waits for a lock; the second succeeds."""
    async with database.transaction() as tx:
        await tx.execute("SELECT pg_advisory_xact_lock(7)")
        fetching = asyncio.create_task(
            database.fetch_idempotent("SELECT pg_advisory_xact_lock(7), 7 AS answer")
        )

        async def waits() -> bool:
            name = database.where.rpartition("/")[2]
            return bool(await postgres_admin.fetchval(_WAITING, name) == 1)

        await until(waits)
        await postgres_admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE wait_event = 'advisory' AND datname = $1",
            database.where.rpartition("/")[2],
        )
        await until(waits)
    assert [row["answer"] for row in await fetching] == [7]


async def test_a_connection_lost_on_release_is_not_an_error(
    database: Database, database_url: Secret, postgres_url: Secret
) -> None:
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT 1") == 1
        end_backends_unnoticed(postgres_url, database_url)
    assert await database.fetchval("SELECT 2") == 2


async def test_close_ends_a_connection_in_use(database_url: Secret) -> None:
    config = DatabaseConfig(pool_min=1, pool_max=1, connect_timeout_s=1.0)
    async with Database.open(database_url, config) as database:
        inside, leave = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with database.transaction():
                inside.set()
                await leave.wait()

        holder = asyncio.create_task(hold())
        await inside.wait()
        async with asyncio.timeout(60):
            await database.close()
        leave.set()
        with pytest.raises(OutcomeUnknownError):
            await holder
    with pytest.raises(UnreachableError):
        await database.fetchval("SELECT 1")


@pytest.mark.parametrize("text", ["'; DROP TABLE note; --", '"$1"', "\\'; --", "한글 ✓", ""])
async def test_text_that_looks_like_sql_is_bound(database: Database, text: str) -> None:
    await database.execute("CREATE TABLE note (body text)")
    await database.execute("INSERT INTO note VALUES ($1)", text)
    assert await database.fetchval("SELECT body FROM note WHERE body = $1", text) == text


async def test_a_wrong_statement_passes_unchanged(database: Database) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await database.execute("SELECT * FROM nowhere")
