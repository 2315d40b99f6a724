"""Parameters that are set during a run reach their strategy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from qts.cache import Cache
from qts.database import Database, DatabaseConfig
from qts.domain import OperationError, Secret
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.strategy_state import StrategyParamsWatcher
from qts.strategies import load_strategy

DEADLINE_S = 60.0
SET = "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ($1, $2, 'test')"


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=10)) as database:
        yield database


class Unreachable:
    """A database whose reads fail a number of times."""

    def __init__(self, database: Database, failures: int) -> None:
        self._database = database
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def fetch(self, *query: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise OperationError("unreachable")
        return await self._database.fetch(*query)


class Runner:
    """What the watcher knows of a runner."""

    def __init__(self) -> None:
        kind = load_strategy("rsi_scalper")
        self.strategy = kind(kind.parse_params({}))
        self.params = self.strategy.params
        self.applied = asyncio.Event()

    def set_params(self, params: msgspec.Struct) -> None:
        self.params = params
        self.applied.set()


class NoCache:
    async def invalidate(self, _what: Any) -> None:
        pass


async def test_a_change_that_could_not_be_read_is_read_again(database: Database) -> None:
    unreachable, runner = Unreachable(database, 2), Runner()
    watcher = StrategyParamsWatcher(
        cast(Database, unreachable),
        {"rsi_scalper": cast(StrategyRunner, runner)},
        cast(Cache, NoCache()),
    )
    await database.execute(SET, "rsi_scalper", {"length": 9})
    task = asyncio.create_task(watcher.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await runner.applied.wait()
    finally:
        task.cancel()
    assert msgspec.to_builtins(runner.params)["length"] == 9
    assert unreachable.failures == 0
