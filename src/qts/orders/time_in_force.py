"""Time in force: cancels what is left of an order when its time is over.

    OPEN ── good_until ──▶ cancel requested ──▶ CANCELLED by the venue's report ──▶ FS093
                                 └──▶ FILLED meanwhile: nothing left to report

The time stands in the order's stored request and is compared with the wall clock, so that a
restart, a machine that slept and another process find the same orders due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg

from qts import telemetry
from qts.domain import OperationError
from qts.orders.context import ExecutionContext
from qts.orders.queries import SQL

CHECK_INTERVAL_S = 0.5
REPEAT_AFTER_S = 15.0  # a cancel is requested again while its order stays open

log = telemetry.logger("orders")


class TimeInForceEnforcer:
    """Cancels overdue orders of one account; `cancel` is that of the order manager."""

    def __init__(
        self, context: ExecutionContext, cancel: Callable[[UUID], Awaitable[bool]]
    ) -> None:
        self._context = context
        self._cancel = cancel
        self._requested_ns: dict[UUID, int] = {}

    async def run(self) -> None:
        """Check until cancelled; retry while the database is unreachable."""
        while True:
            try:
                await self.enforce()
            except (OperationError, asyncpg.PostgresError) as error:
                log.warning("time in force not checked; retrying", error=str(error))
            await self._context.clock.sleep(CHECK_INTERVAL_S)

    async def enforce(self) -> int:
        """Request the cancel of every overdue order; return how many were requested."""
        context = self._context
        rows = await context.database.fetch(
            SQL.overdue_intents, *context.broker.key, context.clock.now()
        )
        overdue = {row["id"] for row in rows}
        now_ns, repeat_ns = context.clock.monotonic_ns(), round(REPEAT_AFTER_S * 1e9)
        self._requested_ns = {
            each: at_ns
            for each, at_ns in self._requested_ns.items()
            if each in overdue and now_ns - at_ns < repeat_ns
        }
        due = overdue - self._requested_ns.keys()
        for intent_id in due:
            if await self._cancel(intent_id):
                log.info("time in force over; cancelling", intent_id=str(intent_id))
            self._requested_ns[intent_id] = now_ns
        return len(due)
