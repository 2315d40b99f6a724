"""From an approved order to the broker and back: desk, bus, executor, reconciler."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta

from qts import telemetry
from qts.app import RunContext
from qts.brokers import Broker
from qts.domain import OperationError
from qts.notify import NotificationService
from qts.orders.context import DatabaseSafetyControls, ExecutionContext
from qts.orders.executor import OrderExecutor
from qts.orders.ledger import Ledger
from qts.orders.manager import OrderManager
from qts.orders.reconcile import Reconciler
from qts.orders.reconcile_check import check_reconciled
from qts.outbox import (
    BACKTEST_COMMAND,
    TRADE_COMMAND,
    TRADE_EVENT,
    Consumer,
    Dispatcher,
    EventBus,
)
from qts.pipeline import OrderUpdatePublisher

log = telemetry.logger("app")

SETTLE_S = 10.0
FIRST_LOOK_S = 30.0
_UNDER_WAY = (
    "SELECT count(*) FROM order_attempt WHERE status IN ('PREPARED', 'SENT') AND created_at >= $1"
)


class ExecutionEngine:
    """Made before anything decides; `consumers` are run by whoever runs the rest."""

    def __init__(
        self,
        ground: RunContext,
        bus: EventBus,
        broker: Broker,
        changes: OrderUpdatePublisher,
        safety: DatabaseSafetyControls,
        notifications: NotificationService,
    ) -> None:
        config, database, clock = ground
        self._ground = ground
        self._bus = bus
        self._safety = safety
        short = config.orders.allow_short
        ledger = Ledger(database, bus, broker.name, allow_short=short, on_change=changes)
        self.floor = ExecutionContext(database, bus, broker, ledger, safety, config.orders, clock)
        self.reconciler = Reconciler(self.floor)
        self.desk = OrderManager(database, bus, broker.name, changes, clock)
        self._dispatcher = Dispatcher()
        OrderExecutor(self.floor, self.reconciler.is_reconciled, self.reconciler.request).register(
            self._dispatcher
        )
        notifications.register(self._dispatcher)

    def consumers(self) -> list[Consumer]:
        streams = (TRADE_COMMAND, TRADE_EVENT, BACKTEST_COMMAND)
        return [self._bus.consumer(stream, self._dispatcher) for stream in streams]

    async def reconcile_at_start(self) -> bool:
        """Nothing trades before our books have been compared with the broker's."""
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                report = await self.reconciler.reconcile_now()
        except (OperationError, TimeoutError) as error:
            log.error("the first comparison with the broker failed; only cancels", error=str(error))
            return False
        if report.differences:
            await self._safety.raise_code("FS070", f"{len(report.differences)} positions differ")
        return True

    async def wait_settled(self, since: datetime) -> None:
        """Until no order is under way any more, or the patience ends."""
        clock, database = self._ground.clock, self._ground.database
        with contextlib.suppress(OperationError, TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while await database.fetchval(_UNDER_WAY, since):
                    await clock.sleep(0.05)

    async def final_check(self, since: datetime) -> tuple[bool, tuple[str, ...]]:
        """Whether the broker's books say the same as ours, and where they do not."""
        try:
            await self.reconciler.reconcile_now()
            found = await check_reconciled(self.floor, since - timedelta(minutes=1))
        except OperationError as error:
            return False, (f"the books could not be compared: {error}",)
        return bool(found), found.differences
