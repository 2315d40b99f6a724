"""Context of order execution at one broker, and the halts that only the operator ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from qts import telemetry
from qts.brokers import Broker
from qts.database import Database
from qts.domain import AccountKey, Clock, RefusedError, TimeLimit
from qts.orders import suspensions
from qts.orders.attempts import AttemptTransitions
from qts.orders.config import OrdersConfig
from qts.orders.ledger import Ledger
from qts.outbox import EventBus
from qts.risk import FailSafe, KillSwitch, SafetyState, is_transient


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


log = telemetry.logger("orders")


async def halt_venue(context: ExecutionContext, text: str) -> None:
    """Disable the account, raise FS110 and suspend every symbol, last: a crash repeats it all."""
    key = context.broker.key
    for known in await suspensions.list_suspensions(context.database, key):
        if (known.symbol, known.code) == (suspensions.ALL, suspensions.BLOCKED):
            return
    await context.safety.disable_account(text)
    await context.safety.raise_code("FS110", text)
    async with context.database.transaction() as tx:
        transitions = AttemptTransitions(tx, context.bus, context.config, context.clock.now())
        await transitions.suspend(key, suspensions.ALL, suspensions.BLOCKED, text)
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
        await transitions.suspend(key, symbol, suspensions.FROZEN, why)
    return bool(transitions.changes)
