"""Positions that are frozen in a run: by an event of the P0 lane, or by exits that do not succeed.

POSITION_FREEZE (P0) ─▶ refused by the gate from this moment on ─▶ written in the books
                                                                   until a person resumes it
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from qts import telemetry
from qts.app import RunContext
from qts.domain import OperationError
from qts.events import Event, EventType, Payload, Priority
from qts.notify import RecentAlerts
from qts.orders import freeze_position
from qts.outbox import EventBus

log = telemetry.logger("app")

AGAIN_S = 1.0
EXITS = 3  # in a row that were not carried out


class PositionFreeze(Payload, frozen=True, kw_only=True):
    """No strategy enters or leaves this symbol until a person releases it."""

    symbol: str
    reason: str


POSITION_FREEZE = EventType(
    "POSITION_FREEZE", Priority.P0, PositionFreeze, "symbol", max_process_time_ms=10
)


class PositionFreezer:
    """A handler of the P0 lane; `pending` are those that are not in the books yet."""

    def __init__(
        self, ground: RunContext, bus: EventBus, broker: str, notices: RecentAlerts
    ) -> None:
        self._ground = ground
        self._bus = bus
        self._broker = broker
        self._notices = notices
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_exits: Counter[str] = Counter()
        self._written: set[str] = set()
        self.pending: set[str] = set()
        self.changed: Callable[[], None] = lambda: None

    def __call__(self, event: Event) -> None:
        self.pending.add(event.payload.symbol)
        self._loop.call_soon_threadsafe(self._start, event.payload.symbol, event.payload.reason)

    def exit_failed(self, symbol: str, why: str) -> None:
        """On the loop. What cannot be left must not become more."""
        self._failed_exits[symbol] += 1
        if self._failed_exits[symbol] == EXITS:
            self.pending.add(symbol)
            self._start(symbol, f"{EXITS} exits failed: {why}")

    def exit_done(self, symbol: str) -> None:
        self._failed_exits.pop(symbol, None)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _start(self, symbol: str, why: str) -> None:
        task = asyncio.create_task(self._write(symbol, why))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, symbol: str, why: str) -> None:
        _, database, clock = self._ground
        at, was_written = clock.now(), symbol in self._written
        if not was_written:
            self._tell(symbol, why, at)
        while True:
            try:
                is_new = await freeze_position(database, self._bus, self._broker, symbol, why, at)
            except OperationError as error:  # refused here all the while
                log.warning("a freeze waits for the database", symbol=symbol, error=str(error))
                await clock.sleep(AGAIN_S)
            else:
                if is_new and was_written:  # a person had released it
                    self._tell(symbol, why, at)
                self._written.add(symbol)
                self._failed_exits.pop(symbol, None)
                self.changed()
                self.pending.discard(symbol)
                return

    def _tell(self, symbol: str, why: str, at: datetime) -> None:
        log.error("a position is frozen", symbol=symbol, reason=why)
        self._notices.add(at.timestamp(), "critical", f"{symbol}: {why}", POSITION_FREEZE.name)
