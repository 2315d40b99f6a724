"""Transactions are atomic and raise the error that ended them."""

# ruff: noqa: PT012 - what raises is a whole transaction block

from __future__ import annotations

import asyncio
import struct
from typing import Any

import asyncpg
import pytest

from qts.database import Database, savepoint
from qts.domain import OperationError, OutcomeUnknownError, Secret, UnreachableError
from tests.database.backends import end_backends, end_backends_unnoticed


@pytest.fixture(autouse=True)
async def _table(database: Database) -> None:
    await database.execute("CREATE TABLE note (id int PRIMARY KEY, body text)")


async def notes(database: Database) -> list[int]:
    return [row["id"] for row in await database.fetch("SELECT id FROM note ORDER BY id")]


async def test_a_block_without_error_is_committed(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("INSERT INTO note VALUES (1), (2)")
        assert await notes(database) == []
    assert await notes(database) == [1, 2]


async def test_an_error_rolls_back_and_is_raised_on(database: Database) -> None:
    mine = LookupError("mine")
    with pytest.raises(LookupError) as caught:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
            raise mine
    assert caught.value is mine
    assert await notes(database) == []


async def test_a_broken_constraint_passes_unchanged(database: Database) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
            await connection.execute("INSERT INTO note VALUES (1)")
    assert await notes(database) == []


async def test_a_swallowed_sql_error_does_not_look_like_a_commit(database: Database) -> None:
    with pytest.raises(OperationError, match="was rolled back"):
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
            with pytest.raises(asyncpg.UniqueViolationError):
                await connection.execute("INSERT INTO note VALUES (1)")
    assert await notes(database) == []


async def test_a_savepoint_fails_alone(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("INSERT INTO note VALUES (1)")
        with pytest.raises(LookupError):
            async with savepoint(connection):
                await connection.execute("INSERT INTO note VALUES (2)")
                async with savepoint(connection):
                    await connection.execute("INSERT INTO note VALUES (3)")
                raise LookupError
        async with savepoint(connection):
            await connection.execute("INSERT INTO note VALUES (4)")
    assert await notes(database) == [1, 4]


async def test_a_cancelled_block_is_rolled_back(database: Database) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await database.execute("INSERT INTO note VALUES (1)")


async def test_a_read_only_block_cannot_write(database: Database) -> None:
    with pytest.raises(OperationError, match=r"cannot write: .*read-only transaction"):
        async with database.transaction(read_only=True) as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
    assert await database.fetchval("SELECT count(*) FROM note") == 0


async def test_repeatable_read_sees_one_moment(database: Database) -> None:
    async with database.transaction(isolation="repeatable read") as connection:
        assert await connection.fetchval("SELECT count(*) FROM note") == 0
        await database.execute("INSERT INTO note VALUES (1)")
        assert await connection.fetchval("SELECT count(*) FROM note") == 0


async def test_write_skew_is_refused_when_serializable(database: Database) -> None:
    count = "SELECT count(*) FROM note"
    async with database.transaction(isolation="serializable") as one:
        await one.fetchval(count)
        with pytest.raises(asyncpg.SerializationError):
            async with database.transaction(isolation="serializable") as two:
                await two.fetchval(count)
                await two.execute("INSERT INTO note VALUES (2)")
                await one.execute("INSERT INTO note VALUES (1)")
                await one.execute("COMMIT; BEGIN")
    assert await notes(database) == [1]


@pytest.mark.parametrize("later_statements", [1, 2])
async def test_a_killed_connection_leaves_nothing_half_written(
    database: Database, database_url: Secret, postgres_url: Secret, later_statements: int
) -> None:
    with pytest.raises(UnreachableError) as caught:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
            end_backends_unnoticed(postgres_url, database_url)
            for _ in range(later_statements - 1):
                with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
                    await connection.execute("INSERT INTO note VALUES (2)")
            await connection.execute("INSERT INTO note VALUES (3)")
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert len(str(caught.value).splitlines()) == 1
    assert await notes(database) == []


async def test_a_connection_lost_at_commit_says_that_the_outcome_is_unknown(
    database: Database, database_url: Secret, postgres_admin: Any
) -> None:
    with pytest.raises(OutcomeUnknownError, match="not known"):
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
            await end_backends(postgres_admin, database_url)
    assert await notes(database) == []


async def test_a_final_error_before_the_end_of_the_connection_means_lost(
    database: Database,
) -> None:
    message = b"SFATAL\0C57P01\0Mterminating connection\0\0"
    with pytest.raises(OutcomeUnknownError, match="not known"):
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO note VALUES (1)")
            protocol = connection._con._protocol  # type: ignore[attr-defined]
            protocol.data_received(b"E" + struct.pack(">i", len(message) + 4) + message)
    assert await notes(database) == []


async def test_the_error_of_the_block_is_raised_even_if_the_connection_died(
    database: Database, database_url: Secret, postgres_admin: Any
) -> None:
    with pytest.raises(LookupError):
        async with database.transaction():
            await end_backends(postgres_admin, database_url)
            raise LookupError
