"""The fail-safe: NORMAL, WARNING, FAIL, LOCKDOWN, stored in the database.

NORMAL ──warning──▶ WARNING ──fail──▶ FAIL ──fail──▶ LOCKDOWN
   ▲ ◀──a minute without one──┘        │                │
   │ ◀──recheck of a transient code────┘                │
   └ ◀──release by the operator─────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import AccountKey, RefusedError
from qts.risk.codes import CODES, Effect, is_transient

log = telemetry.logger("risk")
_STATE = telemetry.gauge("everbit_safety_state", "0 NORMAL, 1 WARNING, 2 FAIL, 3 LOCKDOWN")

WARNING_TTL_S = 60.0
NEVER = datetime.min.replace(tzinfo=UTC)
SELECT_STATE = (
    "SELECT state, code, message, since FROM safety_state WHERE broker = $1 AND account = $2"
)


class SafetyState(StrEnum):
    NORMAL = "NORMAL"
    WARNING = "WARNING"
    FAIL = "FAIL"
    LOCKDOWN = "LOCKDOWN"


class FailSafeStatus(msgspec.Struct, frozen=True):
    """State of the fail-safe, the code that caused it, and since when."""

    state: SafetyState
    code: str | None
    message: str
    since: datetime


class SafetyLogEntry(msgspec.Struct, frozen=True):
    """Row of safety_log."""

    at: datetime
    code: str
    message: str
    state_before: str
    state_after: str
    actor: str


def next_state(state: SafetyState, effect: Effect, *, escalates: bool = True) -> SafetyState:
    """Return the state after a code; no code leads out of FAIL or LOCKDOWN."""
    if effect is Effect.LOCKDOWN or state is SafetyState.LOCKDOWN:
        return SafetyState.LOCKDOWN
    if effect is Effect.FAIL:
        is_second = state is SafetyState.FAIL and escalates
        return SafetyState.LOCKDOWN if is_second else SafetyState.FAIL
    if effect is Effect.WARNING and state is SafetyState.NORMAL:
        return SafetyState.WARNING
    return state


class FailSafe:
    """The fail-safe of an account; each change writes state and log in one transaction.

    A run gives the epoch of its lease: its codes change nothing once another run has the account.
    """

    def __init__(
        self, database: Database, key: AccountKey, epoch: Callable[[], int] | None = None
    ) -> None:
        self._database = database
        self._key = key
        self._epoch: Callable[[], int | None] = epoch or (lambda: None)

    async def now(self) -> FailSafeStatus:
        async with self._database.transaction() as tx:
            return await self._read(tx)

    async def trip(
        self, code: str, message: str = "", actor: str = "qts", **meta: Any
    ) -> FailSafeStatus:
        """Raise a code and return the resulting status."""
        if code not in CODES:
            raise RefusedError(f"code {code} is unknown; expected one of {', '.join(CODES)}")
        known = CODES[code]
        text = f"{known.text}: {message}" if message else known.text
        async with self._database.transaction() as tx:
            before = await self._read(tx, lock=True)
            state = next_state(before.state, known.effect, escalates=known.escalates)
            if state is not before.state and not await self._move(tx, state, code, text):
                log.warning(
                    "code not raised; another run holds the account", code=code, reason=text
                )
                return before
            await self._write(tx, code, text, before.state, state, actor, meta)
        self._report(code, text, before.state, state)
        return await self.now()

    async def clear_warning(self) -> FailSafeStatus:
        """End WARNING when no warning was raised for a minute."""
        async with self._database.transaction() as tx:
            before = await self._read(tx, lock=True)
            if (
                before.state is SafetyState.WARNING
                and await self._quiet(tx)
                and await self._move(tx, SafetyState.NORMAL, None, "")
            ):
                await self._write(
                    tx, "CALM", "no warning for a minute", before.state, "NORMAL", "qts"
                )
                self._report("CALM", "no warning for a minute", before.state, SafetyState.NORMAL)
        return await self.now()

    async def clear_transient_fail(self, seen: FailSafeStatus, found: str) -> FailSafeStatus:
        """End the FAIL that was `seen` before the check, if its code is transient.

        `found` says what was checked. A FAIL raised since then stays.
        """
        async with self._database.transaction() as tx:
            before = await self._read(tx, lock=True)
            if (
                before.state is SafetyState.FAIL
                and is_transient(before.code)
                and before == seen
                and await self._move(tx, SafetyState.NORMAL, None, "")
            ):
                await self._write(tx, "RECHECK", found, before.state, "NORMAL", "qts")
                self._report("RECHECK", found, before.state, SafetyState.NORMAL)
        return await self.now()

    async def release(self, actor: str, reason: str) -> FailSafeStatus:
        """Return to NORMAL on behalf of the operator: the only way out of LOCKDOWN."""
        if not actor or not reason:
            raise RefusedError("a release needs a name and a reason")
        async with self._database.transaction() as tx:
            before = await self._read(tx, lock=True)
            await tx.execute(
                "UPDATE safety_state SET state = 'NORMAL', code = NULL, message = '',"
                " released_by = $3 WHERE broker = $1 AND account = $2",
                *self._key,
                actor,
            )
            await self._write(tx, "RELEASE", reason, before.state, "NORMAL", actor)
        self._report("RELEASE", reason, before.state, SafetyState.NORMAL)
        return await self.now()

    async def log(self, limit: int = 50) -> Sequence[SafetyLogEntry]:
        """Return the newest entries first."""
        rows = await self._database.fetch(
            "SELECT at, code, message, state_before, state_after, actor FROM safety_log"
            " WHERE broker = $1 AND account = $2 ORDER BY id DESC LIMIT $3",
            *self._key,
            limit,
        )
        return [SafetyLogEntry(**dict(row.items())) for row in rows]

    @staticmethod
    def _report(code: str, text: str, before: SafetyState, state: SafetyState) -> None:
        _STATE.set(list(SafetyState).index(state))
        level = log.warning if state is not SafetyState.NORMAL else log.info
        level("fail-safe state", code=code, reason=text, before=before, state=state)

    async def _read(self, tx: Connection, *, lock: bool = False) -> FailSafeStatus:
        row = await tx.fetchrow(SELECT_STATE + (" FOR UPDATE" if lock else ""), *self._key)
        if row is None:
            return FailSafeStatus(SafetyState.LOCKDOWN, "FS001", "the state is missing", NEVER)
        return FailSafeStatus(SafetyState(row[0]), row[1], row[2], row[3])

    async def _move(
        self, tx: Connection, state: SafetyState, code: str | None, message: str
    ) -> bool:
        done = await tx.execute(
            "UPDATE safety_state SET state = $3, code = $4, message = $5"
            " WHERE broker = $1 AND account = $2 AND lease_holds($1, $2, $6)",
            *self._key,
            state,
            code,
            message,
            self._epoch(),
        )
        return done != "UPDATE 0"

    async def _write(
        self,
        tx: Connection,
        code: str,
        message: str,
        before: str,
        state: str,
        actor: str,
        meta: dict[str, Any] | None = None,
    ) -> None:
        await tx.execute(
            "INSERT INTO safety_log"
            " (broker, account, code, message, state_before, state_after, actor, meta)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            *self._key,
            code,
            message,
            before,
            state,
            actor,
            meta or {},
        )

    async def _quiet(self, tx: Connection) -> bool:
        codes = [code for code, known in CODES.items() if known.effect is not Effect.NOTICE]
        return not await tx.fetchval(
            "SELECT count(*) FROM safety_log WHERE broker = $1 AND account = $2"
            " AND code = ANY($3) AND at > clock_timestamp() - make_interval(secs => $4)",
            *self._key,
            codes,
            WARNING_TTL_S,
        )
