"""A process stuck inside a transaction does not block others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from qts.database import Connection, Database, DatabaseConfig
from qts.domain import OperationError, Secret, UnreachableError

SHORT_TIMEOUT = DatabaseConfig(pool_min=1, pool_max=2, idle_transaction_timeout_s=1.5)
LONG_TIMEOUT = DatabaseConfig(pool_min=1, pool_max=2, idle_transaction_timeout_s=30.0)
ADD = "UPDATE counted SET n = n + 1"


@pytest.fixture
async def other(database_url: Secret) -> AsyncIterator[Database]:
    """Open the database as the process that waits for the stuck one."""
    async with Database.open(database_url, SHORT_TIMEOUT) as database:
        await database.execute("CREATE TABLE counted AS SELECT 0 AS n")
        yield database


@pytest.fixture
async def stuck(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, SHORT_TIMEOUT) as database:
        yield database


async def test_a_transaction_that_hangs_between_statements_is_ended(
    other: Database, stuck: Database
) -> None:
    with pytest.raises(UnreachableError):
        await _hang(stuck, lambda _: _until_it_may_add(other))
    assert await other.fetchval("SELECT n FROM counted") == 1
    await stuck.execute(ADD)  # resumed, on a new connection
    assert await other.fetchval("SELECT n FROM counted") == 2


async def test_a_transaction_that_hangs_inside_a_statement_is_terminated_by_the_waiting_one(
    other: Database, stuck: Database
) -> None:
    async def meanwhile(tx: Connection) -> None:
        await _begin_a_statement(tx)
        with pytest.raises(OperationError, match="idle_transaction_timeout_s"):
            await other.execute(ADD)
        await _until_it_may_add(other)

    with pytest.raises(UnreachableError):
        await _hang(stuck, meanwhile)
    assert await other.fetchval("SELECT n FROM counted") == 1


async def test_a_transaction_that_works_is_not_terminated_by_the_waiting_one(
    other: Database, database_url: Secret
) -> None:
    async with Database.open(database_url, LONG_TIMEOUT) as busy, other.connection() as gate:
        await gate.execute("SELECT pg_advisory_lock(1)")
        async with busy.transaction() as tx:
            await tx.execute(ADD)
            working = asyncio.create_task(tx.execute("SELECT pg_advisory_lock(1)"))
            with pytest.raises(OperationError, match="nothing was changed"):
                await other.execute(ADD)
            await gate.execute("SELECT pg_advisory_unlock(1)")
            await working
    assert await other.fetchval("SELECT n FROM counted") == 1


async def test_a_wait_for_a_lock_that_ends_fails_the_whole_transaction(
    other: Database, database_url: Secret
) -> None:
    await other.execute("CREATE TABLE other AS SELECT 0 AS n")

    async def change_both() -> None:
        async with other.transaction() as tx:
            await tx.execute("UPDATE other SET n = 1")
            await tx.execute(ADD)

    async with Database.open(database_url, LONG_TIMEOUT) as holder, holder.transaction() as tx:
        await tx.execute(ADD)
        with pytest.raises(OperationError, match="nothing was changed"):
            await change_both()
    assert await other.fetchval("SELECT n FROM other") == 0


async def _hang(stuck: Database, meanwhile: Callable[[Connection], Awaitable[None]]) -> None:
    """Run `meanwhile` between two statements of an open transaction."""
    async with stuck.transaction() as tx:
        await tx.execute(ADD)
        await meanwhile(tx)
        await tx.execute(ADD)


async def _begin_a_statement(tx: Connection) -> None:
    """Send only the first message of a statement; the server waits for the second."""
    raw: Any = tx
    await raw.prepare("SELECT 1")


async def _until_it_may_add(database: Database) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await database.execute(ADD)
            except OperationError:
                continue
            return
