"""Freezing of positions: by a P0 event, or after exits that failed.

POSITION_FREEZE (P0) ─▶ the gate refuses the symbol at once ─▶ written to the database
                                                               until the operator resumes it
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError
from qts.events import Event, EventType, Payload, Priority
from qts.notify import RecentAlerts
from qts.orders import freeze_position
from qts.outbox import EventBus
from qts.pipeline.risk_snapshot import AccountVersion

log = telemetry.logger("pipeline")

RETRY_INTERVAL_S = 1.0
MAX_FAILED_EXITS = 3  # in a row


class PositionFreeze(Payload, frozen=True, kw_only=True):
    """No strategy may enter or exit this symbol until the operator resumes it."""

    symbol: str
    reason: str


POSITION_FREEZE = EventType(
    "POSITION_FREEZE", Priority.P0, PositionFreeze, "symbol", max_process_time_ms=10
)


class PositionFreezer:
    """P0 handler; `pending` holds the symbols that are not yet frozen in the database."""

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        account: AccountKey,
        alerts: RecentAlerts,
        version: AccountVersion,
        clock: Clock,
    ) -> None:
        self._database = database
        self._bus = bus
        self._account = account
        self._alerts = alerts
        self._version = version
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_exits: Counter[str] = Counter()
        self._written: set[str] = set()
        self.pending: set[str] = set()

    def __call__(self, event: Event) -> None:
        self.pending.add(event.payload.symbol)
        self._loop.call_soon_threadsafe(self._start, event.payload.symbol, event.payload.reason)

    def exit_failed(self, symbol: str, reason: str) -> None:
        """Freeze a position that cannot be sold, so that it does not grow; call on the loop."""
        self._failed_exits[symbol] += 1
        if self._failed_exits[symbol] == MAX_FAILED_EXITS:
            self.pending.add(symbol)
            self._start(symbol, f"{MAX_FAILED_EXITS} exits failed: {reason}")

    def exit_done(self, symbol: str) -> None:
        self._failed_exits.pop(symbol, None)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _start(self, symbol: str, reason: str) -> None:
        task = asyncio.create_task(self._write(symbol, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, symbol: str, reason: str) -> None:
        at, was_written = self._clock.now(), symbol in self._written
        if not was_written:
            self._alert(symbol, reason, at)
        while True:
            try:
                is_new = await freeze_position(
                    self._database, self._bus, self._account, symbol, reason, at
                )
            except OperationError as error:  # `pending` keeps the symbol refused meanwhile
                log.warning("freeze not stored; retrying", symbol=symbol, error=str(error))
                await self._clock.sleep(RETRY_INTERVAL_S)
            else:
                if is_new and was_written:  # the operator had resumed it since
                    self._alert(symbol, reason, at)
                self._written.add(symbol)
                self._failed_exits.pop(symbol, None)
                self._version.advance()
                self.pending.discard(symbol)
                return

    def _alert(self, symbol: str, reason: str, at: datetime) -> None:
        log.error("position frozen", symbol=symbol, reason=reason)
        self._alerts.add(at.timestamp(), "critical", f"{symbol}: {reason}", POSITION_FREEZE.name)
