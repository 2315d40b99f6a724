"""Notifications, before and after a lost connection."""

# ruff: noqa: PT012 - what raises is a whole transaction block

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qts.database import Database, DatabaseConfig, Listener, ListenStarted, Notification
from qts.database import connection as connection_module
from qts.domain import Secret
from tests.database.backends import backends, end_backends, until

NOTIFY = "SELECT pg_notify($1, $2)"


async def next_of(listener: Listener) -> ListenStarted | Notification:
    async with asyncio.timeout(10):
        return await anext(listener)


async def test_a_notification_arrives_after_listening_began(database: Database) -> None:
    async with database.listen("orders", "fills") as listener:
        assert await next_of(listener) == ListenStarted()
        await database.execute(NOTIFY, "orders", "one")
        await database.execute(NOTIFY, "fills", "둘")
        await database.execute(NOTIFY, "others", "three")
        await database.execute(NOTIFY, "orders", "four")
        arrived = [await next_of(listener) for _ in range(3)]
    assert arrived == [
        Notification("orders", "one"),
        Notification("fills", "둘"),
        Notification("orders", "four"),
    ]


async def test_a_rolled_back_notification_never_arrives(database: Database) -> None:
    async with database.listen("orders") as listener:
        await next_of(listener)
        with pytest.raises(LookupError):
            async with database.transaction() as connection:
                await connection.execute(NOTIFY, "orders", "undone")
                raise LookupError
        await database.execute(NOTIFY, "orders", "kept")
        assert await next_of(listener) == Notification("orders", "kept")


async def test_a_lost_listener_reports_it_and_resumes(
    database: Database, database_url: Secret, postgres_admin: Any
) -> None:
    async with database.listen("orders") as listener:
        await next_of(listener)
        for round_number in range(3):
            await end_backends(postgres_admin, database_url)
            await database.execute(NOTIFY, "orders", "while disconnected")
            assert await next_of(listener) == ListenStarted()
            await database.execute(NOTIFY, "orders", f"round {round_number}")
            assert await next_of(listener) == Notification("orders", f"round {round_number}")


async def test_a_listener_waits_for_a_server_that_refuses_it(
    database: Database,
    database_url: Secret,
    postgres_admin: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = database.where.rpartition("/")[2]
    async with database.listen("orders") as listener, database.listen("fills"):
        await next_of(listener)
        await postgres_admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        await end_backends(postgres_admin, database_url)
        waiting = asyncio.create_task(next_of(listener))
        done, _ = await asyncio.wait([waiting], timeout=0.5)  # several attempts
        assert not done
        await postgres_admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        assert await waiting == ListenStarted()
    assert capfd.readouterr().err.count("listen failed; retrying") == 1


async def test_a_reader_that_is_too_slow_gets_a_new_start(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_PENDING", 3)
    async with database.listen("orders") as listener:
        await next_of(listener)
        for number in range(5):
            await database.execute(NOTIFY, "orders", str(number))

        async def have_arrived() -> bool:
            return listener._pending.qsize() == 4  # three, and the end of the connection

        await until(have_arrived)
        arrived = [await next_of(listener) for _ in range(4)]
    assert arrived == [*(Notification("orders", str(n)) for n in range(3)), ListenStarted()]


async def test_a_silent_connection_is_pinged_and_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "PING_INTERVAL_S", 0.05)
    async with database.listen("orders") as listener:
        await next_of(listener)
        waiting = asyncio.create_task(next_of(listener))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        await database.execute(NOTIFY, "orders", "after a while")
        assert await waiting == Notification("orders", "after a while")


async def test_a_listener_takes_no_connection_of_the_pool_and_leaves_none(
    database_url: Secret, postgres_admin: Any
) -> None:
    async def only_the_pool_is_left() -> bool:
        return await backends(postgres_admin, database_url) == 1

    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=1)) as database:
        async with database.listen("orders") as listener:
            await next_of(listener)
            async with database.transaction() as connection:
                assert await connection.fetchval("SELECT 1") == 1
            waiting = asyncio.create_task(next_of(listener))
            await asyncio.sleep(0)
            waiting.cancel()
        await until(only_the_pool_is_left)


async def test_a_channel_name_that_looks_like_sql_is_only_a_name(database: Database) -> None:
    name = 'x"; DROP TABLE schema_migration; --'
    async with database.listen(name) as listener:
        await next_of(listener)
        await database.execute(NOTIFY, name, "hello")
        assert await next_of(listener) == Notification(name, "hello")
    assert await database.fetchval("SELECT count(*) FROM schema_migration") >= 1


@pytest.mark.parametrize("name", ["", "x" * 64, "한" * 22])
async def test_a_channel_name_that_postgresql_would_cut_is_refused(
    database: Database, name: str
) -> None:
    with pytest.raises(ValueError, match="1 to 63 bytes"):
        database.listen(name)
