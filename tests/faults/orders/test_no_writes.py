"""PostgreSQL runs and accepts no writes: locked, hanging, read-only, its disk full.

Submitting fails with the cause and can be repeated; sent orders are reconciled, and no pending
order is lost or sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from qts.database import Database, DatabaseConfig, migrate
from qts.domain import OperationError, Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.risk import ApprovedOrder
from qts.risk.proposal import approve
from tests.database.backends import name_of
from tests.faults.orders.rig import Rig, is_logged, rig, submit_for_sure, worker
from tests.outbox.kit import until
from tests.outbox.worker_group import seed

STILL_S = 1.0
QUICK = DatabaseConfig(pool_min=1, pool_max=10, idle_transaction_timeout_s=STILL_S)
FULL = """
CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'could not extend file "base": No space left on device'
        USING ERRCODE = 'disk_full';
END $$;
"""
WRITTEN = ("order_intent", "order_attempt", "broker_order", "fill", "outbox_event")


@pytest.fixture
async def made(database_url: Secret) -> AsyncIterator[Rig]:
    async with Database.open(database_url, QUICK) as database, rig(database) as made:
        yield made


@asynccontextmanager
async def locked(_admin: Any, url: Secret) -> AsyncIterator[None]:
    """A maintenance session locks every order."""
    holder = await asyncpg.connect(url.reveal())
    lock = "LOCK TABLE order_attempt, order_intent IN ACCESS EXCLUSIVE MODE"
    try:
        while True:
            transaction = holder.transaction()
            await transaction.start()
            try:
                await holder.execute(lock)
                break
            except asyncpg.DeadlockDetectedError:  # an order locks them the other way round
                await transaction.rollback()
        yield
        await transaction.rollback()
    finally:
        await holder.close()


@asynccontextmanager
async def read_only(admin: Any, url: Secret) -> AsyncIterator[None]:
    name = name_of(url)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
    await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    await admin.execute(cut, name)
    try:
        yield
    finally:
        await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await admin.execute(cut, name)


@asynccontextmanager
async def full(_admin: Any, url: Secret) -> AsyncIterator[None]:
    """The server answers every new row as it does when its disk is full."""
    hand = await asyncpg.connect(url.reveal())
    try:
        await hand.execute(FULL)
        for table in WRITTEN:
            await hand.execute(
                f"CREATE TRIGGER no_space BEFORE INSERT OR UPDATE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION no_space()"
            )
        yield
        await hand.execute("DROP FUNCTION no_space CASCADE")
    finally:
        await hand.close()


FAULTS = {
    "locked": (locked, "no lock within"),
    "read-only": (read_only, "read-only transaction"),
    "full": (full, "No space left on device"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_cannot_be_written_is_refused_aloud_and_nothing_is_lost(
    made: Rig, database_url: Secret, postgres_admin: Any, log: Path, fault: str
) -> None:
    strike, words = FAULTS[fault]
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with worker(made, database_url, log, still_s=STILL_S):
        await made.submit(3)
        await made.settle()
        made.fault("slow", count=8, seconds=0.5)  # so that there is an outcome to be written
        early = asyncio.create_task(submit_for_sure(made, 8))
        await until(lambda: _has_left(made, 4), 60)
        await asyncio.sleep(chance.uniform(0.0, 0.1))  # any moment of the others' life will do
        async with strike(postgres_admin, database_url):
            placed = len(made.entries)
            order = approve(made.proposal(made.symbols[5]), made.now())
            await until(lambda: _is_refused(made, order, words), 60)
            await until(lambda: is_logged(log, words), 60)
            assert len(made.entries) <= placed + 8  # those that had left before
        await early
        made.submitted.append(await made.manager.submit(order))
        await made.settle()
        placed = len(made.entries)
        await until(lambda: _reaches_the_venue(made, placed), 60)
        await made.settle()
    intents = await made.database.fetchval("SELECT count(*) FROM order_intent")
    assert intents == len(made.submitted), await made.states()
    found = await made.states()
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED", "THROTTLED"}, found


async def test_fills_while_nothing_can_be_written_are_all_counted_later(
    made: Rig, database_url: Secret, postgres_admin: Any, log: Path
) -> None:
    """Orders in flight continue at the venue; the ledger catches up later."""
    made.fault("slow", count=4, seconds=0.3)  # answers arrive when the database takes no more
    async with worker(made, database_url, log, still_s=STILL_S):
        await made.submit(4)
        await until(lambda: _has_left(made, 4), 60)
        async with read_only(postgres_admin, database_url):
            await until(lambda: is_logged(log, "read-only transaction"), 60)
            await asyncio.sleep(2.0)  # longer than it is tried to write an outcome down
            assert any(entry.order.filled for entry in made.entries)
        await made.settle()
    assert await made.states() == {"ACKED": 4}
    assert len(made.entries) == 4


@pytest.mark.timeout(120)
async def test_a_server_that_hangs_loses_no_accepted_order(tmp_path: Path, log: Path) -> None:
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    with EmbeddedServers(Home.at(tmp_path / "home"), EmbeddedConfig(), valkey=False) as servers:
        assert servers.postgres is not None
        assert servers.postgres.pid is not None
        url, postmaster = servers.postgres.url, servers.postgres.pid
        async with Database.open(url, DatabaseConfig(pool_min=1, pool_max=10)) as database:
            await migrate(database)
            async with rig(database) as made, worker(made, url, log):
                submitting = asyncio.create_task(submit_for_sure(made, 20))
                for _ in range(2):
                    await asyncio.sleep(chance.uniform(0.05, 0.3))  # any moment will do
                    rows = await database.fetch("SELECT pid FROM pg_stat_activity")
                    stopped = [postmaster, *(row["pid"] for row in rows)]
                    _signal(stopped, signal.SIGSTOP)
                    await asyncio.sleep(1.5)  # longer than an order may take to leave
                    _signal(stopped, signal.SIGCONT)
                await submitting
                await made.settle()
                found = await made.states()
                intents = await database.fetchval("SELECT count(*) FROM order_intent")
    assert intents == 20
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED", "THROTTLED"}
    assert found["ACKED"] > 0


def _signal(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # a session that has ended
            os.kill(pid, number)


async def _is_refused(made: Rig, order: ApprovedOrder, words: str) -> bool:
    """Return whether submit fails with the cause; a cut connection would hide it."""
    try:
        await made.manager.submit(order)
    except OperationError as error:
        return words in str(error)
    return False


async def _reaches_the_venue(made: Rig, placed: int) -> bool:
    """Submit once more; on a busy machine an order may expire before it leaves."""
    await submit_for_sure(made, 1)
    await made.settle()
    return len(made.entries) > placed


async def _has_left(made: Rig, count: int) -> bool:
    return len(made.entries) >= count
