"""What the executor and the reconciler of one broker share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qts.brokers import Broker
from qts.database import Database
from qts.domain import Clock
from qts.orders.config import OrdersConfig
from qts.orders.ledger import Ledger
from qts.outbox import EventBus
from qts.risk import FailSafe, KillSwitch, SafetyState, is_transient


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
