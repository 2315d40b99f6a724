"""States and parameters of strategies in PostgreSQL, stored and read while a run calls them.

    call returned, state changed ─▶ keep(state, then) ─▶ durable commit ─▶ then: signals leave
                   nothing returned ─▶ keep(state)    ─▶ the same, within half a second

Invariant: whatever a strategy returned is acted on after the state of the end of that call is
durable. So a state that is restored, after `kill -9` too, is that of the last call whose signals
left, or of a later one. One commit stores the states of all strategies that changed.

Parameters are what the operator sets during a run; the run reads and applies them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from qts import telemetry
from qts.brokers import AccountTakenError
from qts.cache import Cache, Invalidation
from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError
from qts.pipeline.decision_journal import Entry, StateEntry
from qts.pipeline.runner import StrategyRunner
from qts.pipeline.runner_hooks import Then

log = telemetry.logger("pipeline")

WRITE_INTERVAL_S = 0.5  # of states that nothing waits for
RETRY_INTERVAL_S = 1.0
CLOSE_TIMEOUT_S = 5.0

_ALL = "SELECT strategy_key, state FROM strategy_state WHERE broker = $1 AND account = $2"
_STORE = (
    "INSERT INTO strategy_state (broker, account, strategy_key, state)"
    " SELECT $1, $2, * FROM unnest($3::text[], $4::bytea[]) WHERE lease_holds($1, $2, $5)"
    " ON CONFLICT (broker, account, strategy_key)"
    " DO UPDATE SET state = EXCLUDED.state, updated_at = clock_timestamp()"
)
_LIST = (
    "SELECT strategy_key, state, updated_at FROM strategy_state"
    " WHERE broker = $1 AND account = $2 ORDER BY strategy_key"
)
_CLEAR = "DELETE FROM strategy_state WHERE broker = $1 AND account = $2 AND strategy_key = $3"

CHANNEL = "qts_strategy_params"
_PARAMS = "SELECT strategy_key, params, version, changed_by FROM strategy_params"


class StrategyStates:
    """States of a run's strategies, on one event loop; `load` before the first call, then `run`."""

    def __init__(
        self,
        database: Database,
        account: AccountKey,
        record: Callable[[Entry], None] | None,
        epoch: Callable[[], int] | None = None,  # of the lease of the run
    ) -> None:
        self._database = database
        self._account = account
        self._record = record
        self._epoch: Callable[[], int | None] = epoch or (lambda: None)
        self._changed: dict[str, bytes] = {}  # not stored yet, by strategy
        self._then: list[Then] = []  # waits for what has changed
        self._due, self._urgent = asyncio.Event(), asyncio.Event()
        self._writing: dict[str, bytes] = {}  # by the commit in flight
        self._stored = asyncio.Event()

    async def load(self, runners: Mapping[str, StrategyRunner]) -> None:
        """Restore the states; raise RefusedError for one that its class does not fit."""
        for key, data in await self._database.fetch(_ALL, *self._account):
            if (runner := runners.get(key)) is not None and runner.keeps_state:
                runner.restore_state(data)
                log.info("state restored", strategy=key, bytes=len(data))
                if self._record is not None:
                    self._record(StateEntry(key, data))

    def keep(self, key: str, state: bytes | None, then: Sequence[Then]) -> None:
        """Store a state (None: as before), then call these, in order and after earlier ones."""
        if state is not None:
            self._changed[key] = state
        elif key not in self._changed and key not in self._writing:
            for each in then:
                each()
            return
        self._then += then
        self._due.set()
        if self._then:
            self._urgent.set()

    async def run(self) -> None:
        """Store what has changed until cancelled; retry while the database is unreachable."""
        while True:
            await self._due.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_INTERVAL_S):
                    await self._urgent.wait()
            try:
                await self._write()
            except OperationError as error:
                log.warning("states of strategies not stored; retrying", error=str(error))
                await asyncio.sleep(RETRY_INTERVAL_S)

    async def close(self) -> None:
        """Wait until everything is stored, at most five seconds."""
        self._urgent.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._changed or self._writing or self._then:
                    self._stored.clear()
                    await self._stored.wait()
                return
        log.error("states of strategies not stored", strategies=sorted(self._changed))

    async def _write(self) -> None:
        self._writing, self._changed = self._changed, {}
        then, self._then = self._then, []
        self._due.clear()
        self._urgent.clear()
        try:
            if keys := [*self._writing]:
                values = keys, [*self._writing.values()], self._epoch()
                async with self._database.transaction(durable=True) as tx:
                    if await tx.execute(_STORE, *self._account, *values) == "INSERT 0 0":
                        raise AccountTakenError(f"another run holds account {self._account}")
        except BaseException:
            self._changed, self._then = {**self._writing, **self._changed}, [*then, *self._then]
            self._due.set()
            self._urgent.set()
            raise
        finally:
            self._writing = {}
            self._stored.set()
        for each in then:
            each()


class StrategyStateRow(msgspec.Struct, frozen=True):
    strategy_key: str
    state: dict[str, Any]
    size_bytes: int
    updated_at: datetime


async def list_states(database: Database, account: AccountKey) -> list[StrategyStateRow]:
    """Return the stored states of an account."""
    return [
        StrategyStateRow(key, msgspec.msgpack.decode(data), len(data), at)
        for key, data, at in await database.fetch(_LIST, *account)
    ]


async def clear_state(database: Database, account: AccountKey, key: str) -> bool:
    """Remove the stored state of a strategy; return whether there was one."""
    return await database.execute(_CLEAR, *account, key) != "DELETE 0"


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
        for row in await self._database.fetch(_PARAMS):
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
            await asyncio.sleep(RETRY_INTERVAL_S)

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
