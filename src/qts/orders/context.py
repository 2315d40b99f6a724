"""Context of order execution at one broker: its parts, and what an answer of the venue stops.

Halts that only the operator ends: a blocked venue, an order of an attempt that was given up, a
frozen position. Codes for how the venue answers orders are raised after an outcome is stored:

three in a row not answered in time ─▶ FS042    symbol that the venue does not know ─▶ FS091
three in a row not sent             ─▶ FS090    three entries in a row rejected     ─▶ FS040
answered, but slowly                ─▶ AN050, at most once a minute

One order without an answer is UNKNOWN: its symbol is suspended, the others trade on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Protocol
from uuid import UUID

import msgspec

from qts import telemetry
from qts.brokers import Broker, VenueBlockedError
from qts.database import Database
from qts.domain import (
    AccountKey,
    Clock,
    OperationError,
    OutcomeUnknownError,
    RefusedError,
    TimeLimit,
    UnreachableError,
)
from qts.orders.attempts import (
    ALL,
    BLOCKED,
    FROZEN,
    AttemptTransitions,
    OrderAttempt,
    list_suspensions,
)
from qts.orders.config import OrdersConfig
from qts.orders.ledger import Ledger
from qts.outbox import EventBus
from qts.risk import FailSafe, KillSwitch, SafetyState, is_transient
from qts.venues import NO_SUCH_SYMBOL, RateLimitedError, VenueRejectedError

log = telemetry.logger("orders")

MAX_FAILURES = 3  # in a row
SLOW = 0.5  # of orders.place_timeout_s
REPEAT_INTERVAL_S = 60.0


class HeldLease(Protocol):
    """The lease of the account, as far as sending needs it."""

    @property
    def epoch(self) -> int: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def send_by(self) -> TimeLimit: ...


class SafetyControls(Protocol):
    """What stops trading when an order or a venue fails."""

    async def raise_code(self, code: str, text: str) -> None:
        """Raise a fail-safe code."""
        ...

    async def raise_once(self, code: str, text: str) -> bool:
        """Raise a code unless trading is stopped for it, or until the operator acts on another.

        Return whether it is stopped for this code.
        """
        ...

    async def disable_account(self, text: str) -> None:
        """Stop trading until the operator enables the account again."""
        ...


class DatabaseSafetyControls:
    """The fail-safe and the kill switch in the database, where orders are checked against both."""

    def __init__(self, fail_safe: FailSafe, kill_switch: KillSwitch) -> None:
        self._fail_safe = fail_safe
        self._kill_switch = kill_switch

    async def raise_code(self, code: str, text: str) -> None:
        await self._fail_safe.trip(code, text, actor="orders")

    async def raise_once(self, code: str, text: str) -> bool:
        # A second FAIL is LOCKDOWN; the same finding, after a restart too, is not a second one.
        now = await self._fail_safe.now()
        if now.state in (SafetyState.FAIL, SafetyState.LOCKDOWN):
            if now.code == code:
                return True
            if not is_transient(now.code):
                return False
        await self.raise_code(code, text)
        return True

    async def disable_account(self, text: str) -> None:
        await self._kill_switch.set(False, actor="orders", reason=text)


@dataclass(frozen=True)
class ExecutionContext:
    """The parts of order execution at one broker."""

    database: Database
    bus: EventBus
    broker: Broker
    ledger: Ledger
    safety: SafetyControls
    config: OrdersConfig
    clock: Clock
    order_database: Database | None = None  # reserved for orders; None: none is sent directly
    # By attempt: how its holding differed from the position at the last look.
    differing: dict[UUID, tuple[object, ...]] = field(default_factory=dict)
    # By attempt without an outcome: its age at the first look, and when that was (monotonic).
    first_looks: dict[UUID, tuple[timedelta, int]] = field(default_factory=dict)


async def halt_venue(context: ExecutionContext, text: str) -> None:
    """Disable the account, raise FS110 and suspend every symbol, last: a crash repeats it all."""
    key = context.broker.key
    for known in await list_suspensions(context.database, key):
        if (known.symbol, known.code) == (ALL, BLOCKED):
            return
    await context.safety.disable_account(text)
    await context.safety.raise_code("FS110", text)
    async with context.database.transaction() as tx:
        transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
        await transitions.suspend(key, ALL, BLOCKED, text)
    context.ledger.notify(transitions.changes)


async def raise_ghost(
    context: ExecutionContext, order_id: str, attempt_id: UUID, status: str
) -> None:
    """Raise FS043 for an order at the venue whose attempt was given up, with what to do."""
    text = (
        f"order {order_id} is at the venue, and attempt {attempt_id} is {status}; check it there, "
        f"then run: qts orders resolve {attempt_id} --as {order_id}, and qts failsafe release"
    )
    log.error("order of an attempt that was given up", reason=text)
    await context.safety.raise_once("FS043", text)


async def freeze_position(
    database: Database, bus: EventBus, key: AccountKey, symbol: str, why: str, now: datetime
) -> bool:
    """Freeze a position; its stops stay in force. Return False when it was frozen before."""
    if not symbol.strip():
        raise RefusedError("expected a symbol; * freezes the whole venue")
    async with database.transaction() as tx:
        transitions = AttemptTransitions(tx, bus, OrdersConfig(), now)
        await transitions.suspend(key, symbol, FROZEN, why)
    return bool(transitions.changes)


class PlaceOutcomeKind(Enum):
    ACCEPTED = auto()
    REJECTED = auto()
    BLOCKED = auto()  # rejected, as every other request will be
    NOT_PLACED = auto()  # certain: another attempt may follow
    UNKNOWN = auto()


NOT_RECONCILED = "NOT_RECONCILED"  # not sent, because a reconciliation began


class PlaceOutcome(msgspec.Struct, frozen=True):
    kind: PlaceOutcomeKind
    order_id: str = ""
    code: str = ""
    text: str = ""
    pause_s: float | None = None


def classify_place_error(error: Exception) -> PlaceOutcome:
    """Return what an error means for the attempt; anything ambiguous may have been placed."""
    text = str(error) or type(error).__name__
    if isinstance(error, RateLimitedError):
        return PlaceOutcome(
            PlaceOutcomeKind.NOT_PLACED, code="THROTTLED", text=text, pause_s=error.retry_after_s
        )
    if isinstance(error, VenueBlockedError):
        return PlaceOutcome(PlaceOutcomeKind.BLOCKED, code="BLOCKED", text=text)
    if isinstance(error, VenueRejectedError):
        return PlaceOutcome(PlaceOutcomeKind.REJECTED, code=error.code or "REJECTED", text=text)
    if isinstance(error, RefusedError):
        return PlaceOutcome(PlaceOutcomeKind.REJECTED, code="REFUSED", text=text)
    if isinstance(error, UnreachableError) and not isinstance(error, OutcomeUnknownError):
        return PlaceOutcome(PlaceOutcomeKind.NOT_PLACED, code="UNREACHABLE", text=text)
    if isinstance(error, TimeoutError):
        text = "the venue did not answer in time"
        return PlaceOutcome(PlaceOutcomeKind.UNKNOWN, code="TIMEOUT", text=text)
    return PlaceOutcome(PlaceOutcomeKind.UNKNOWN, code="UNKNOWN", text=text)


class PlaceMonitor:
    """Counts the outcomes of one account's orders; for one event loop."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._slow_s = context.config.place_timeout_s * SLOW
        self._throttle = telemetry.LogThrottle(context.clock.monotonic_ns)
        self._unsent = self._rejected = self._unanswered = 0

    async def note(self, attempt: OrderAttempt, outcome: PlaceOutcome, took_s: float) -> None:
        """Raise the codes of an outcome; one that cannot be stored is logged."""
        found = self._codes(attempt, outcome, took_s)
        for code, text in found:
            try:
                await self._context.safety.raise_code(code, text)
            except OperationError as error:
                log.error("fail-safe code not stored", code=code, reason=text, error=str(error))

    def _codes(
        self, attempt: OrderAttempt, outcome: PlaceOutcome, took_s: float
    ) -> list[tuple[str, str]]:
        kind, what = outcome.kind, f"{attempt.request.side} {attempt.symbol}"
        found: list[tuple[str, str]] = []
        if outcome.code == NOT_RECONCILED:
            return found  # the order waits for a reconciliation, as at each reconnect of the stream
        # A rate limit is the pace that the venue asks for, not a failure to send.
        is_unsent = kind is PlaceOutcomeKind.NOT_PLACED and outcome.code != "THROTTLED"
        self._unsent = self._unsent + 1 if is_unsent else 0
        if self._unsent == MAX_FAILURES:
            self._unsent = 0
            found.append(("FS090", f"{MAX_FAILURES} in a row, the last: {what}: {outcome.text}"))
        is_late = outcome.code == "TIMEOUT" or took_s > self._slow_s
        is_unanswered = kind is PlaceOutcomeKind.UNKNOWN and is_late
        self._unanswered = self._unanswered + 1 if is_unanswered else 0
        if self._unanswered == MAX_FAILURES:
            self._unanswered = 0
            found.append(("FS042", f"{MAX_FAILURES} in a row, the last: {what}: {outcome.text}"))
        if kind in (PlaceOutcomeKind.ACCEPTED, PlaceOutcomeKind.REJECTED):
            found += self._answered(attempt, outcome, took_s)
        return found

    def _answered(
        self, attempt: OrderAttempt, outcome: PlaceOutcome, took_s: float
    ) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        what = f"{attempt.request.side} {attempt.symbol}"
        if outcome.kind is PlaceOutcomeKind.ACCEPTED:
            self._rejected = 0
        elif outcome.code in NO_SUCH_SYMBOL:
            if self._throttle.every(3600.0, attempt.symbol):
                found.append(("FS091", f"{what}: {outcome.text}"))
        elif not attempt.intent_type.is_exit:  # an exit is repeated, and reported by GR074
            self._rejected += 1
            if self._rejected == MAX_FAILURES:
                self._rejected = 0
                text = f"{MAX_FAILURES} entries in a row rejected, the last: {what}: {outcome.text}"
                found.append(("FS040", text))
        if took_s > self._slow_s and self._throttle.every(REPEAT_INTERVAL_S, "AN050"):
            found.append(("AN050", f"{what}: answered after {took_s:.1f} s"))
        return found
