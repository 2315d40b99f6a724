"""Codes and alerts from anywhere in a run: written down by the fail-safe, shown to the owner."""

from __future__ import annotations

import asyncio
from typing import Any

from qts import telemetry
from qts.app.live import Notices
from qts.domain import Clock, Failed
from qts.events import Hooks
from qts.risk import FailSafe

log = telemetry.logger("app")


class Alarm:
    """Made on the loop that writes; `trip` may be called from any thread."""

    def __init__(self, fail_safe: FailSafe, notices: Notices, clock: Clock) -> None:
        self._fail_safe = fail_safe
        self._notices = notices
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def trip(self, code: str, text: str) -> None:
        self._loop.call_soon_threadsafe(self._soon, code, text)

    def hooks(self) -> Hooks:
        """For the event lanes."""

        def told(alert: Any) -> None:
            self.trip(alert.code, alert.text)

        def noted(alert: Any) -> None:
            at = self._clock.now().timestamp()
            self._notices.note(at, alert.severity, alert.text, alert.code)

        return Hooks(alert=noted, fail_safe=told, guardrail=told)

    def _soon(self, code: str, text: str) -> None:
        task = asyncio.create_task(self._write(code, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, code: str, text: str) -> None:
        try:
            await self._fail_safe.trip(code, text)
        except Failed as error:
            log.error("a code could not be written down", code=code, error=str(error))
