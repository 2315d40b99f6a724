"""The kill switch: for the account and for each strategy, in the database, off unless set.

`Watch` keeps what the database says close by: it listens for changes and looks once a second all
the same. When the database has been silent for too long, everything counts as off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, OperationError, RefusedError
from qts.risk.fail_safe import NEVER, FailSafeStatus, SafetyState

log = telemetry.logger("risk")

ACCOUNT = "account"
TOO_OLD_S = 3.0
_LOOK_EVERY_S = 1.0
_NOTHING = FailSafeStatus(SafetyState.LOCKDOWN, None, "the database has not been asked", NEVER)


class Switch(msgspec.Struct, frozen=True):
    """`enabled`: trading is allowed."""

    enabled: bool
    reason: str
    changed_by: str
    changed_at: datetime


class KillSwitch:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(
        self, enabled: bool, actor: str, reason: str = "", strategy: str | None = None
    ) -> None:
        """Allow trading or stop it, for the account or for one strategy."""
        if not actor:
            raise RefusedError("a switch is set by somebody; name who")
        scope = ACCOUNT if strategy is None else "strategy"
        async with self._database.transaction() as tx:
            await tx.execute(
                "INSERT INTO kill_switch (scope, strategy_key, trading_enabled, reason, changed_by)"
                " VALUES ($1, $2, $3, $4, $5) ON CONFLICT (scope, strategy_key) DO UPDATE"
                " SET trading_enabled = $3, reason = $4, changed_by = $5,"
                " changed_at = clock_timestamp()",
                scope,
                strategy or "",
                enabled,
                reason,
                actor,
            )
        log.warning(
            "trading was switched", on=enabled, scope=strategy or ACCOUNT, by=actor, reason=reason
        )

    async def all(self) -> Mapping[str, Switch]:
        """By strategy; the account's own under `account`."""
        rows = await self._database.fetch(
            "SELECT scope, strategy_key, trading_enabled, reason, changed_by, changed_at"
            " FROM kill_switch ORDER BY scope, strategy_key"
        )
        return {
            row["strategy_key"] or ACCOUNT: Switch(
                row["trading_enabled"], row["reason"], row["changed_by"], row["changed_at"]
            )
            for row in rows
        }

    async def enable_unset(self, strategies: tuple[str, ...], actor: str) -> None:
        """Write the switches that have never been set, as on; those that were stay as they are."""
        async with self._database.transaction() as tx:
            for scope, key in ((ACCOUNT, ""), *(("strategy", name) for name in strategies)):
                await tx.execute(
                    "INSERT INTO kill_switch (scope, strategy_key, trading_enabled, changed_by)"
                    " VALUES ($1, $2, true, $3) ON CONFLICT DO NOTHING",
                    scope,
                    key,
                    actor,
                )


class SafetyMonitor:
    """What the switches and the fail-safe said a moment ago."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._kill = KillSwitch(database)
        self._safety = _NOTHING
        self._switches: Mapping[str, Switch] = {}
        self._looked_ns: int | None = None
        self._changed = asyncio.Event()

    @property
    def is_current(self) -> bool:
        looked = self._looked_ns
        return looked is not None and self._clock.monotonic_ns() - looked < TOO_OLD_S * 1e9

    @property
    def safety(self) -> FailSafeStatus:
        return self._safety if self.is_current else _NOTHING

    def enabled(self, strategy: str | None = None) -> bool:
        """Whether this may trade; what was never set may not."""
        switch = self._switches.get(ACCOUNT if strategy is None else strategy)
        return self.is_current and switch is not None and switch.enabled

    async def refresh(self) -> None:
        async with self._database.transaction() as tx:
            row = await tx.fetchrow("SELECT state, code, message, since FROM safety_state")
        self._switches = await self._kill.all()
        if row is not None:
            self._safety = FailSafeStatus(
                SafetyState(row[0]), row[1], row[2], row[3].astimezone(UTC)
            )
            self._looked_ns = self._clock.monotonic_ns()

    async def run(self) -> None:
        """Until cancelled; a database that is away is asked again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._keep_looking())

    async def _listen(self) -> None:
        async with self._database.listen("qts_safety") as listener:
            async for _ in listener:
                self._changed.set()

    async def _keep_looking(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.refresh()
            except OperationError as error:
                log.warning("the switches cannot be read; trading waits", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):  # unlike wait_for it keeps a cancel
                    await self._changed.wait()
