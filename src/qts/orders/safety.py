"""Whom to tell when something went wrong with orders, or a venue shuts us out."""

from __future__ import annotations

from typing import Protocol

from qts.risk import FailSafe, KillSwitch


class Safety(Protocol):
    async def fail(self, code: str, text: str) -> None:
        """Something went wrong that the fail-safe has a code for."""
        ...

    async def switch_off(self, text: str) -> None:
        """Nothing may be sent any more until a person switches the account on again."""
        ...


class Switchboard:
    """The fail-safe and the kill switch. Orders look at both in the database, where they move."""

    def __init__(self, fail_safe: FailSafe, kill_switch: KillSwitch) -> None:
        self._fail_safe = fail_safe
        self._kill_switch = kill_switch

    async def fail(self, code: str, text: str) -> None:
        await self._fail_safe.trip(code, text, actor="orders")

    async def switch_off(self, text: str) -> None:
        await self._kill_switch.set(False, actor="orders", reason=text)
