"""The fail-safe: its codes, and NORMAL, WARNING, FAIL or LOCKDOWN, stored in the database.

NORMAL ──warning──▶ WARNING ──fail──▶ FAIL ──fail──▶ LOCKDOWN
   ▲ ◀──a minute without one──┘        │                │
   │ ◀──recheck of a transient code────┘                │
   └ ◀──release by the operator─────────────────────────┘
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from qts import telemetry
from qts.domain import AccountKey, Clock, OperationError, RefusedError

if TYPE_CHECKING:
    from qts.database import Connection, Database
    from qts.events import LaneAlert

log = telemetry.logger("risk")
_STATE = telemetry.gauge("everbit_safety_state", "0 NORMAL, 1 WARNING, 2 FAIL, 3 LOCKDOWN")
WARNING_TTL_S = 60.0
RETRY_INTERVAL_S = 1.0
CLOSE_TIMEOUT_S = 5.0
NEVER = datetime.min.replace(tzinfo=UTC)
SELECT_STATE = (
    "SELECT state, code, message, since FROM safety_state WHERE broker = $1 AND account = $2"
)
AddAlert = Callable[[float, Literal["info", "warning", "critical"], str, str], None]


class Effect(StrEnum):
    """What a code of the fail-safe (FS), the guardrails (GR) or the anomalies (AN) does.

    notice     logged; the state does not change
    warning    NORMAL becomes WARNING: trading continues
    fail       trading stops; a second one in a row is LOCKDOWN
    lockdown   everything stops until the operator releases it
    """

    NOTICE = "notice"
    WARNING = "warning"
    FAIL = "fail"
    LOCKDOWN = "lockdown"


class Code(msgspec.Struct, frozen=True):
    code: str
    effect: Effect
    text: str
    transient: bool = False  # a reconciliation without differences may end its FAIL
    escalates: bool = True  # raised in FAIL, it leads to LOCKDOWN


_ROWS: tuple[tuple[str, str, str], ...] = (
    ("FS001", "lockdown", "the schema does not fit this version"),
    ("FS010", "fail", "a required field of the market or account data is missing"),
    ("FS020", "fail", "a calculation did not give a number"),
    ("FS030", "fail", "the risk calculation failed"),
    ("FS040", "fail transient", "the broker failed to execute orders"),
    ("FS041", "fail", "a fill lacks data"),
    ("FS042", "fail transient", "orders are not answered in time"),
    ("FS043", "fail", "the venue has an order of an attempt that was given up"),
    ("FS050", "fail", "the equity is zero or below"),
    ("FS060", "fail transient", "a cycle took far too long"),
    ("FS070", "fail transient", "positions and fills do not agree"),
    ("FS080", "lockdown", "the capital is zero or below"),
    ("FS090", "fail transient", "no order could be sent"),
    ("FS091", "fail", "an order named a symbol that does not exist"),
    ("FS092", "notice", "an emergency escape was carried out"),
    ("FS093", "notice", "an order was not filled in time; the rest is cancelled"),
    ("FS094", "warning", "the slippage is above its limit"),
    ("FS095", "fail transient", "the P0 lane is full"),
    ("FS096", "fail", "the P0 lane failed; trading is suspended"),
    ("FS097", "fail", "the P1 lane could not be restarted"),
    ("FS098", "fail", "a P0 handler used up its retries"),
    ("FS100", "fail transient", "the micro risk loop failed and was restarted"),
    ("FS101", "warning", "the micro risk loop's positions are old"),
    ("FS102", "notice", "an emergency exit was carried out"),
    ("FS103", "notice", "the cycle was suspended"),
    ("FS104", "lockdown", "the volatility kill: everything is sold"),
    ("FS105", "warning", "the price of a position is too old for its stop"),
    ("FS110", "lockdown", "the venue has blocked us (HTTP 418)"),
    ("FS111", "warning", "the outcome of an order is unknown; its symbol is suspended"),
    ("FS112", "notice", "another run has taken the account; this one ends"),
    ("FS113", "warning", "the clock differs from the venue's: no new entries"),
    ("GR001", "warning", "the exposure is at its limit"),
    ("GR010", "warning", "a symbol's weight is at its limit"),
    ("GR020", "warning", "the day's loss is at its limit: no new entries"),
    ("GR030", "notice", "a symbol is bought and sold at once"),
    ("GR040", "notice", "a sale without a position"),
    ("GR041", "notice", "the account holds what QTS did not buy: it is left alone"),
    ("GR061", "notice", "the balance is short"),
    ("GR062", "warning", "the day's number of orders is used up"),
    ("GR063", "notice", "slippage"),
    ("GR064", "notice", "a fill is slow"),
    ("GR070", "notice", "stops are adjusted too often"),
    ("GR071", "notice", "an adverse excursion is near its limit"),
    ("GR072", "notice", "a position is near its time limit"),
    ("GR073", "warning", "volatility is rising"),
    ("GR074", "warning", "an emergency order failed and is retried"),
    ("GR075", "notice", "a position is too small to be sold: it is parked as dust"),
    ("GR090", "warning", "the event lanes handle critical events only"),
    ("AN001", "warning", "a price jumped"),
    ("AN010", "warning", "a symbol or a price is missing"),
    ("AN020", "warning", "the profit jumped"),
    ("AN030", "warning", "the ledger does not add up"),
    ("AN040", "warning", "cycles take three times as long as usual"),
    ("AN050", "warning", "the broker is slow"),
)
# One outage of a venue or of this machine raises several of these: they are not a second failure.
_IN_NUMBERS = frozenset(("FS040", "FS042", "FS060", "FS090"))
CODES: dict[str, Code] = {
    code: Code(
        code,
        Effect(effect.split()[0]),
        text,
        transient=effect.endswith("transient"),
        escalates=code not in _IN_NUMBERS,
    )
    for code, effect, text in _ROWS
}


def is_transient(code: str | None) -> bool:
    """Return whether a FAIL by this code may end without the operator."""
    return code in CODES and CODES[code].transient


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


class FailSafeReporter:
    """Shows codes as alerts at once and stores them in order; `trip` works from any thread.

    It is built on the loop that writes.
    """

    def __init__(self, fail_safe: FailSafe, add_alert: AddAlert, clock: Clock) -> None:
        self._fail_safe = fail_safe
        self._add_alert = add_alert
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[str, str]] = deque()
        self._writer: asyncio.Task[None] | None = None

    def trip(self, code: str, text: str) -> None:
        if _stops_trading(code):
            # The operator sees the alert before the database has the code.
            self._alert("critical", text or CODES[code].text, code)
        self._loop.call_soon_threadsafe(self._enqueue, code, text)

    def on_lane_alert(self, alert: LaneAlert) -> None:
        """Show an alert of the event lanes; raise its code, if it has one."""
        if not _stops_trading(alert.code):
            self._alert(alert.severity, alert.text, alert.code)
        if alert.code:
            self.trip(alert.code, alert.text)

    def _alert(self, severity: Any, text: str, code: str) -> None:
        self._add_alert(self._clock.now().timestamp(), severity, text, code)

    def _enqueue(self, code: str, text: str) -> None:
        self._queue.append((code, text))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Wait until the codes are stored, at most for CLOSE_TIMEOUT_S."""
        await asyncio.sleep(0)  # those that are being enqueued
        if self._writer is None or self._writer.done():
            return
        _, writing = await asyncio.wait({self._writer}, timeout=CLOSE_TIMEOUT_S)
        if writing:
            self._writer.cancel()
            await asyncio.wait({self._writer})
            log.error(
                "fail-safe codes not stored before the end", codes=[code for code, _ in self._queue]
            )

    async def _write(self) -> None:
        """Store codes in order: the effect of a code depends on those before it."""
        while self._queue:
            while not await self._is_stored(*self._queue[0]):
                await self._clock.sleep(RETRY_INTERVAL_S)
            self._queue.popleft()

    async def _is_stored(self, code: str, text: str) -> bool:
        try:
            await self._fail_safe.trip(code, text)
        except OperationError as error:
            log.warning("fail-safe code not stored; retrying", code=code, error=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - the codes behind it must be stored all the same
            log.error("fail-safe code discarded", code=code, error=repr(error))
        return True


def _stops_trading(code: str) -> bool:
    return code in CODES and CODES[code].effect in (Effect.FAIL, Effect.LOCKDOWN)
