"""Strategy parameters that the operator sets during a run, read from the database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from qts import telemetry
from qts.cache import Cache, Invalidation
from qts.database import Database
from qts.domain import OperationError, RefusedError
from qts.pipeline.runner import StrategyRunner

log = telemetry.logger("pipeline")

CHANNEL = "qts_strategy_params"
_RETRY_INTERVAL_S = 1.0
_ALL = "SELECT strategy_key, params, version, changed_by FROM strategy_params"


class StrategyParamsWatcher:
    """Applies parameters as they change; `load` before the first tick, then `run`."""

    def __init__(
        self, database: Database, runners: Mapping[str, StrategyRunner], cache: Cache | None
    ) -> None:
        self._database = database
        self._runners = runners
        self._cache = cache
        self._versions: dict[str, int] = {}

    async def load(self) -> None:
        """Apply the stored parameters; log and skip those a strategy refuses."""
        for row in await self._database.fetch(_ALL):
            key = row["strategy_key"]
            if self._versions.get(key) != row["version"]:
                self._versions[key] = row["version"]
                await self._apply(key, row["params"], row["changed_by"])

    async def run(self) -> None:
        async with self._database.listen(CHANNEL) as listener:
            # The first comes once listening starts: changes before that are read, too.
            async for _ in listener:
                await self._load_until_read()

    async def _load_until_read(self) -> None:
        while True:
            try:
                return await self.load()
            except OperationError as error:
                log.warning("strategy parameters not read; retrying", error=str(error))
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _apply(self, key: str, params: Mapping[str, Any], actor: str) -> None:
        runner = self._runners.get(key)
        if runner is None:
            return
        before = msgspec.to_builtins(runner.params)
        try:
            runner.set_params(runner.strategy.parse_params({**before, **params}))
        except RefusedError as error:
            log.error("strategy parameters refused", strategy=key, error=str(error))
            return
        log.warning("strategy parameters changed", strategy=key, actor=actor, params=params)
        if self._cache is None:
            return
        try:
            await self._cache.invalidate(Invalidation("strategy", key))
        except OperationError as error:
            log.warning("cache invalidation failed", kind="strategy", error=str(error))
