"""Fail-safe codes from any thread: shown as alerts at once, stored in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.events import LaneAlert
from qts.risk.codes import CODES, Effect
from qts.risk.fail_safe import FailSafe

log = telemetry.logger("risk")

RETRY_INTERVAL_S = 1.0
CLOSE_TIMEOUT_S = 5.0
AddAlert = Callable[[float, Literal["info", "warning", "critical"], str, str], None]


class FailSafeReporter:
    """Built on the loop that writes; `trip` may be called from any thread."""

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
