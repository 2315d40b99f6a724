"""Parameters that the owner sets while strategies run: taken from the database as they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from qts import telemetry
from qts.cache import Cache
from qts.cache import Invalidation as CacheChange
from qts.database import Database
from qts.domain import OperationError, RefusedError
from qts.pipeline.runner import StrategyRunner

log = telemetry.logger("app")

CHANNEL = "qts_strategy_params"
_ALL = "SELECT strategy_key, params, version, changed_by FROM strategy_params"


class StrategyParamsWatcher:
    """`load` before the first tick, then `run` until cancelled."""

    def __init__(
        self, database: Database, runners: Mapping[str, StrategyRunner], cache: Cache
    ) -> None:
        self._database = database
        self._runners = runners
        self._cache = cache
        self._versions: dict[str, int] = {}

    async def load(self) -> None:
        """What was set last is in force; what a strategy does not take is told of and left."""
        for row in await self._database.fetch(_ALL):
            key = row["strategy_key"]
            if self._versions.get(key) != row["version"]:
                self._versions[key] = row["version"]
                await self._take(key, row["params"], row["changed_by"])

    async def run(self) -> None:
        async with self._database.listen(CHANNEL) as listener:
            async for _ in listener:  # also when it begins to listen: some may have been missed
                try:
                    await self.load()
                except OperationError as error:
                    log.warning("parameters could not be read", error=str(error))

    async def _take(self, key: str, params: Mapping[str, Any], actor: str) -> None:
        runner = self._runners.get(key)
        if runner is None:
            return
        before = msgspec.to_builtins(runner.params)
        try:
            runner.set_params(runner.strategy.parse_params({**before, **params}))
        except RefusedError as error:
            log.error("parameters were refused", strategy=key, error=str(error))
            return
        log.warning("a strategy has other parameters", strategy=key, by=actor, params=params)
        try:
            await self._cache.invalidate(CacheChange("strategy", key))
        except OperationError as error:
            log.warning("the cache was not told of a change", kind="strategy", error=str(error))
