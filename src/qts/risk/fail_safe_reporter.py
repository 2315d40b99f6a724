"""Codes and alerts from anywhere in a run: written down by the fail-safe, shown to the owner."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.events import AlertHooks
from qts.risk.codes import CODES, Effect
from qts.risk.fail_safe import FailSafe

log = telemetry.logger("app")

AGAIN_S = 1.0
AddAlert = Callable[[float, Literal["info", "warning", "critical"], str, str], None]


class FailSafeReporter:
    """Made on the loop that writes; `trip` may be called from any thread."""

    def __init__(self, fail_safe: FailSafe, add_alert: AddAlert, clock: Clock) -> None:
        self._fail_safe = fail_safe
        self._add_alert = add_alert
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[str, str]] = deque()
        self._writer: asyncio.Task[None] | None = None

    def trip(self, code: str, text: str) -> None:
        if code in CODES and CODES[code].effect in (Effect.FAIL, Effect.LOCKDOWN):
            said = text or CODES[code].text  # known to the owner before it is to the database
            self._add_alert(self._clock.now().timestamp(), "critical", said, code)
        self._loop.call_soon_threadsafe(self._soon, code, text)

    def hooks(self) -> AlertHooks:
        """For the event lanes."""

        def told(alert: Any) -> None:
            self.trip(alert.code, alert.text)

        def noted(alert: Any) -> None:
            at = self._clock.now().timestamp()
            self._add_alert(at, alert.severity, alert.text, alert.code)

        return AlertHooks(alert=noted, fail_safe=told, guardrail=told)

    def _soon(self, code: str, text: str) -> None:
        self._waiting.append((code, text))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """One after another: where a code leads depends on those before it."""
        while self._waiting:
            code, text = self._waiting.popleft()
            while not await self._is_written(code, text):
                await self._clock.sleep(AGAIN_S)

    async def _is_written(self, code: str, text: str) -> bool:
        try:
            await self._fail_safe.trip(code, text)
        except OperationError as error:
            log.warning("a code waits for the database", code=code, error=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - those behind it have to be written all the same
            log.error("a code could not be written down", code=code, error=repr(error))
        return True
