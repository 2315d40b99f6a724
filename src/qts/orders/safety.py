"""What may stop an order at the last moment, and whom to tell when a venue shuts us out."""

from __future__ import annotations

from typing import Protocol

from qts.database import Connection
from qts.domain import IntentType
from qts.orders.queries import SQL
from qts.risk import FailSafe, KillSwitch


class Safety(Protocol):
    async def stops(self, tx: Connection, strategy_key: str, intent_type: IntentType) -> str | None:
        """Why an order must not leave now, as a code; None when it may."""
        ...

    async def fail(self, code: str, text: str) -> None:
        """Something went wrong that the fail-safe has a code for."""
        ...

    async def switch_off(self, text: str) -> None:
        """Nothing may be sent any more until a person switches the account on again."""
        ...


class Switchboard:
    """The switches and the fail-safe as the database has them in this very transaction.

    Exits pass where entries do not: closing must not wait for a strategy to be switched on, nor
    for a lockdown to end. Nothing passes when the whole account is switched off.
    """

    def __init__(self, fail_safe: FailSafe, kill_switch: KillSwitch) -> None:
        self._fail_safe = fail_safe
        self._kill_switch = kill_switch

    async def stops(self, tx: Connection, strategy_key: str, intent_type: IntentType) -> str | None:
        row = await tx.fetchrow(SQL.switches, strategy_key)
        if row is None or not row["account"]:
            return "KILL_SWITCH"
        if intent_type.is_exit:
            return None
        if not row["strategy"]:
            return "STRATEGY_OFF"
        return None if row["safety"] in ("NORMAL", "WARNING") else f"SAFETY_{row['safety']}"

    async def fail(self, code: str, text: str) -> None:
        await self._fail_safe.trip(code, text, actor="orders")

    async def switch_off(self, text: str) -> None:
        await self._kill_switch.set(False, actor="orders", reason=text)
