"""Strategies of an account run in one process at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qts.app import strategies_role
from qts.app.strategies_role import StrategiesLock
from qts.database import Database
from qts.domain import OperationError, RefusedError
from tests.pipeline.counting import ACCOUNT

END = "SELECT pg_terminate_backend($1)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_INTERVAL_S", "RETRY_INTERVAL_S"):
        monkeypatch.setattr(strategies_role, name, 0.02)


async def test_a_second_process_is_refused_until_the_first_has_ended(database: Database) -> None:
    first, second = (StrategiesLock(database, [ACCOUNT]) for _ in range(2))
    async with first:
        assert first.is_held()
        with pytest.raises(RefusedError, match="run in another process"):
            await second.__aenter__()
        assert not second.is_held()
    async with asyncio.timeout(10):
        while not second.is_held():
            try:
                await second.__aenter__()
            except RefusedError:  # the server has not noticed the end of the first yet
                await asyncio.sleep(0.02)
    await second.__aexit__()


async def test_a_lock_whose_connection_is_lost_is_taken_again(database: Database) -> None:
    async with StrategiesLock(database, [ACCOUNT]) as lock:
        running = asyncio.create_task(lock.run())
        former: Any = lock._connection
        await database.fetchval(END, former.get_server_pid())
        async with asyncio.timeout(10):
            while lock._connection is former or not lock.is_held():  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.02)
        running.cancel()


async def test_a_lock_that_another_process_took_ends_the_role(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies_role, "LOST_AFTER_S", 0.2)
    async with StrategiesLock(database, [ACCOUNT]) as lock:
        former: Any = lock._connection
        await database.fetchval(END, former.get_server_pid())
        monkeypatch.setattr(strategies_role, "LOST_AFTER_S", 3.0)
        async with StrategiesLock(database, [ACCOUNT]):
            monkeypatch.setattr(strategies_role, "LOST_AFTER_S", 0.2)
            with pytest.raises(OperationError, match="run in another process"):
                async with asyncio.timeout(10):
                    await lock.run()
            assert not lock.is_held()
