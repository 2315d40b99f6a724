"""The kill switch of an account and of each strategy in it: in the database, off unless set.

`SafetyMonitor` keeps a copy: it listens for changes and reads once a second. After three seconds
without a successful read, everything counts as off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import MANUAL, AccountKey, Clock, OperationError, RefusedError, check_name
from qts.risk.fail_safe import NEVER, SELECT_STATE, FailSafeStatus, SafetyState

log = telemetry.logger("risk")

ACCOUNT = "account"
MAX_AGE_S = 3.0
_REFRESH_INTERVAL_S = 1.0
_UNKNOWN = FailSafeStatus(SafetyState.LOCKDOWN, None, "the database was not read", NEVER)
_STORED_KEYS = (
    "SELECT strategy_key FROM kill_switch WHERE scope = 'strategy'"
    " UNION SELECT strategy_key FROM order_intent"
    " UNION SELECT strategy_key FROM strategy_params"
)


class Switch(msgspec.Struct, frozen=True):
    """`enabled`: trading is allowed."""

    enabled: bool
    reason: str
    changed_by: str
    changed_at: datetime


class KillSwitch:
    """The switches of one account; a run gives the epoch of its lease, and writes with no other."""

    def __init__(
        self, database: Database, key: AccountKey, epoch: Callable[[], int] | None = None
    ) -> None:
        self._database = database
        self._key = key
        self._epoch: Callable[[], int | None] = epoch or (lambda: None)

    async def set(
        self, enabled: bool, actor: str, reason: str = "", strategy: str | None = None
    ) -> None:
        """Allow trading or stop it, for the account or for one strategy."""
        if not actor:
            raise RefusedError("setting the kill switch needs an actor")
        scope = ACCOUNT if strategy is None else "strategy"
        async with self._database.transaction() as tx:
            done = await tx.execute(
                "INSERT INTO kill_switch"
                " (broker, account, scope, strategy_key, trading_enabled, reason, changed_by)"
                " SELECT $1, $2, $3, $4, $5, $6, $7 WHERE lease_holds($1, $2, $8)"
                " ON CONFLICT (broker, account, scope, strategy_key) DO UPDATE"
                " SET trading_enabled = $5, reason = $6, changed_by = $7,"
                " changed_at = clock_timestamp()",
                *self._key,
                scope,
                strategy or "",
                enabled,
                reason,
                actor,
                self._epoch(),
            )
        if done == "INSERT 0 0":
            log.warning("kill switch not set; another run holds the account", reason=reason)
            return
        log.warning(
            "kill switch set",
            trading=enabled,
            scope=strategy or ACCOUNT,
            actor=actor,
            reason=reason,
        )

    async def check_strategy(self, key: str, configured: Callable[[], Iterable[str]]) -> None:
        """Raise RefusedError unless a switch, an order, a parameter or the settings name `key`.

        The keys `configured` are read last: a strategy with a switch can be stopped even while
        its module cannot be loaded.
        """
        stored = {row["strategy_key"] for row in await self._database.fetch(_STORED_KEYS)}
        if key not in stored:
            check_name("strategy", key, sorted(stored.union(configured())))

    async def all(self) -> Mapping[str, Switch]:
        """Return the switches by strategy key; the account's under `account`."""
        rows = await self._database.fetch(
            "SELECT scope, strategy_key, trading_enabled, reason, changed_by, changed_at"
            " FROM kill_switch WHERE broker = $1 AND account = $2 ORDER BY scope, strategy_key",
            *self._key,
        )
        return {
            row["strategy_key"] or ACCOUNT: Switch(
                row["trading_enabled"], row["reason"], row["changed_by"], row["changed_at"]
            )
            for row in rows
        }

    async def enable_unset(self, strategies: tuple[str, ...], actor: str) -> None:
        """Allow trading for the account and strategies whose switch was never set."""
        async with self._database.transaction() as tx:
            for scope, key in ((ACCOUNT, ""), *(("strategy", name) for name in strategies)):
                await tx.execute(
                    "INSERT INTO kill_switch"
                    " (broker, account, scope, strategy_key, trading_enabled, changed_by)"
                    " SELECT $1, $2, $3, $4, true, $5 WHERE lease_holds($1, $2, $6)"
                    " ON CONFLICT DO NOTHING",
                    *self._key,
                    scope,
                    key,
                    actor,
                    self._epoch(),
                )


async def stop_all_accounts(database: Database, actor: str, reason: str) -> None:
    """Stop trading of every account that has a switch; one without may not trade anyway."""
    await database.execute(
        "UPDATE kill_switch SET trading_enabled = false, changed_by = $1, reason = $2,"
        " changed_at = clock_timestamp() WHERE scope = 'account'",
        actor,
        reason,
    )


class SafetyMonitor:
    """Copy of an account's kill switches and fail-safe state, at most three seconds old."""

    def __init__(self, database: Database, key: AccountKey, clock: Clock) -> None:
        self._database = database
        self._key = key
        self._clock = clock
        self._kill = KillSwitch(database, key)
        self._safety = _UNKNOWN
        self._switches: Mapping[str, Switch] = {}
        self._read_ns: int | None = None
        self._changed = asyncio.Event()

    @property
    def is_current(self) -> bool:
        read_ns = self._read_ns
        return read_ns is not None and self._clock.monotonic_ns() - read_ns < MAX_AGE_S * 1e9

    @property
    def safety(self) -> FailSafeStatus:
        return self._safety if self.is_current else _UNKNOWN

    def enabled(self, strategy: str | None = None) -> bool:
        """Return whether the account or the strategy may trade; unset means no.

        Orders of the operator have no switch but the account's.
        """
        switch = self._switches.get(ACCOUNT if strategy in (None, MANUAL) else str(strategy))
        return self.is_current and switch is not None and switch.enabled

    def is_off(self, strategy: str | None = None) -> bool:
        """Return whether the operator stopped the account, or the strategy, by the last reading."""
        found = [self._switches.get(each) for each in (ACCOUNT, strategy) if each is not None]
        return any(switch is not None and not switch.enabled for switch in found)

    async def refresh(self) -> None:
        async with self._database.transaction() as tx:
            row = await tx.fetchrow(SELECT_STATE, *self._key)
        self._switches = await self._kill.all()
        if row is not None:
            self._safety = FailSafeStatus(
                SafetyState(row[0]), row[1], row[2], row[3].astimezone(UTC)
            )
            self._read_ns = self._clock.monotonic_ns()

    async def run(self) -> None:
        """Refresh until cancelled; an unreachable database is retried."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._refresh_periodically())

    async def _listen(self) -> None:
        async with self._database.listen("qts_safety") as listener:
            async for _ in listener:
                self._changed.set()

    async def _refresh_periodically(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.refresh()
            except OperationError as error:
                log.warning("kill switches not read; entries blocked", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_INTERVAL_S):
                    await self._changed.wait()
