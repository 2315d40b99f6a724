"""Order execution of a run: manager, executor, reconciler."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta

from qts import telemetry
from qts.brokers import AccountLease
from qts.domain import OperationError
from qts.orders.context import ExecutionContext
from qts.orders.executor import OrderExecutor
from qts.orders.manager import OrderManager
from qts.orders.reconcile import RETRY_INTERVAL_S, TRANSIENT, Reconciler
from qts.orders.reconcile_check import check_reconciled
from qts.orders.resolve import resolve_unknown
from qts.orders.time_in_force import TimeInForceEnforcer
from qts.orders.updates import AccountListener, OrderListener
from qts.outbox import Dispatcher

log = telemetry.logger("orders")

SETTLE_TIMEOUT_S = 10.0
STARTUP_TIMEOUT_S = 30.0
_IN_FLIGHT = (
    "SELECT count(*) FROM order_attempt WHERE status IN ('PREPARED', 'SENT') AND created_at >= $1"
    " AND broker = $2 AND account = $3"
)


class ExecutionEngine:
    """Built before anything decides. Nothing is sent while `lease` is not held."""

    def __init__(
        self,
        context: ExecutionContext,
        on_update: OrderListener,
        account: AccountListener,
        lease: AccountLease,
    ) -> None:
        if lease.key != context.broker.key:
            raise AssertionError(f"the lease of {lease.key} is not of {context.broker.key}")
        self._lease = lease
        self.context = context
        self.reconciler = Reconciler(context, account)
        reconciler = self.reconciler

        def may_send() -> bool:
            return lease.may_send and reconciler.is_reconciled()

        self._executor = OrderExecutor(context, may_send, reconciler.request, lease)
        self.manager = OrderManager(
            context.database,
            context.bus,
            context.broker.key,
            on_update,
            context.clock,
            self._executor,
        )
        self.time_in_force = TimeInForceEnforcer(context, self.manager.cancel)

    def register(self, dispatcher: Dispatcher) -> None:
        """Handle the commands of the trade streams."""
        self._executor.register(dispatcher)

    async def reconcile_at_start(self) -> bool:
        """Reconcile before anything trades; return whether it succeeded.

        This run holds the lease of the account and has sent nothing: attempts that are SENT are
        those of runs that send no more, and their symbols must not be traded before they are found.
        """
        await self._lease.wait_quiet()
        try:
            async with asyncio.timeout(STARTUP_TIMEOUT_S):
                await resolve_unknown(self.context, nobody_sends=True)
                report = await self.reconciler.reconcile_now()
                if report.differences:  # two in a row raise FS070
                    await self.context.clock.sleep(RETRY_INTERVAL_S)
                    await self.reconciler.reconcile_now()
        except (*TRANSIENT, TimeoutError) as error:
            log.error("startup reconciliation failed; accepting cancels only", error=str(error))
            return False
        return True

    async def wait_settled(self, since: datetime) -> None:
        """Wait until no attempt since then is in flight, at most ten seconds.

        Without the lease, those of another run are among them: this one ends its requests.
        """
        with contextlib.suppress(OperationError, TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                while self._lease.is_held and await self.context.database.fetchval(
                    _IN_FLIGHT, since, *self.context.broker.key
                ):
                    await self.context.clock.sleep(0.05)
                await self._executor.close()

    async def close(self) -> None:
        """Wait for the requests of this process that are in flight."""
        await self._executor.close()

    async def final_check(self, since: datetime) -> tuple[bool, tuple[str, ...]]:
        """Return whether ledger and broker agree, and the differences.

        The run has stopped and sends nothing more: an attempt without an outcome is looked up now.
        A resting order may fill during a comparison, and a request may fail: it is repeated until
        the ledger agrees, or until two in a row find the same differences, at most ten seconds.
        """
        clock, before = self.context.clock, None
        end_ns = clock.monotonic_ns() + round(SETTLE_TIMEOUT_S * 1e9)
        while True:
            found = None
            try:
                await resolve_unknown(self.context, nobody_sends=self._lease.is_held)
                await self.reconciler.reconcile_now()
                found = await check_reconciled(self.context, since - timedelta(minutes=1))
                differences = found.differences
            except TRANSIENT as error:
                differences = (f"reconciliation failed: {error}",)
            is_same = found is not None and differences == before
            if found or is_same or clock.monotonic_ns() >= end_ns:
                return bool(found), differences
            before = differences
            await clock.sleep(RETRY_INTERVAL_S)
