"""A process that stands still in the middle of a transaction: others go on without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from qts.database import Connection, Database, DatabaseConfig
from qts.domain import OperationError, Secret, UnreachableError

STILL = DatabaseConfig(pool_min=1, pool_max=2, idle_transaction_timeout_s=1.5)
PATIENT = DatabaseConfig(pool_min=1, pool_max=2, idle_transaction_timeout_s=30.0)
ADD = "UPDATE counted SET n = n + 1"


@pytest.fixture
async def next_one(database_url: Secret) -> AsyncIterator[Database]:
    """The process that comes after the frozen one."""
    async with Database.open(database_url, STILL) as database:
        await database.execute("CREATE TABLE counted AS SELECT 0 AS n")
        yield database


@pytest.fixture
async def frozen(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, STILL) as database:
        yield database


async def test_a_transaction_that_stands_still_between_statements_is_ended(
    next_one: Database, frozen: Database
) -> None:
    with pytest.raises(UnreachableError):
        await _stand_still(frozen, lambda _: _until_it_may_add(next_one))
    assert await next_one.fetchval("SELECT n FROM counted") == 1
    await frozen.execute(ADD)  # awake again, on a connection of its own
    assert await next_one.fetchval("SELECT n FROM counted") == 2


async def test_a_transaction_that_stands_still_inside_a_statement_is_ended_by_who_waits(
    next_one: Database, frozen: Database
) -> None:
    async def meanwhile(tx: Connection) -> None:
        await _begin_a_statement(tx)
        with pytest.raises(OperationError, match="idle_transaction_timeout_s"):
            await next_one.execute(ADD)
        await _until_it_may_add(next_one)

    with pytest.raises(UnreachableError):
        await _stand_still(frozen, meanwhile)
    assert await next_one.fetchval("SELECT n FROM counted") == 1


async def test_a_transaction_that_works_is_not_ended_by_who_waits(
    next_one: Database, database_url: Secret
) -> None:
    async with Database.open(database_url, PATIENT) as busy, next_one.connection() as gate:
        await gate.execute("SELECT pg_advisory_lock(1)")
        async with busy.transaction() as tx:
            await tx.execute(ADD)
            working = asyncio.create_task(tx.execute("SELECT pg_advisory_lock(1)"))
            with pytest.raises(OperationError, match="nothing was changed"):
                await next_one.execute(ADD)
            await gate.execute("SELECT pg_advisory_unlock(1)")
            await working
    assert await next_one.fetchval("SELECT n FROM counted") == 1


async def test_a_wait_for_a_lock_that_ends_fails_the_whole_transaction(
    next_one: Database, database_url: Secret
) -> None:
    await next_one.execute("CREATE TABLE other AS SELECT 0 AS n")

    async def change_both() -> None:
        async with next_one.transaction() as tx:
            await tx.execute("UPDATE other SET n = 1")
            await tx.execute(ADD)

    async with Database.open(database_url, PATIENT) as holder, holder.transaction() as tx:
        await tx.execute(ADD)
        with pytest.raises(OperationError, match="nothing was changed"):
            await change_both()
    assert await next_one.fetchval("SELECT n FROM other") == 0


async def _stand_still(
    frozen: Database, meanwhile: Callable[[Connection], Awaitable[None]]
) -> None:
    """Between its two statements the transaction does nothing; others do."""
    async with frozen.transaction() as tx:
        await tx.execute(ADD)
        await meanwhile(tx)
        await tx.execute(ADD)


async def _begin_a_statement(tx: Connection) -> None:
    """As far as asyncpg's first message of a new statement: the server waits for the second."""
    asking: Any = tx
    await asking.prepare("SELECT 1")


async def _until_it_may_add(database: Database) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await database.execute(ADD)
            except OperationError:
                continue
            return
