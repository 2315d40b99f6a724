"""Order execution of a run: its parts, time in force, comparison with the venue, gauges."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from qts import telemetry
from qts.brokers import AccountLease
from qts.database import Database
from qts.domain import AccountKey, AttemptState, Clock, OperationError
from qts.orders.context import ExecutionContext
from qts.orders.executor import OrderExecutor
from qts.orders.holdings import load_baseline
from qts.orders.ledger_values import SQL, AccountListener, OrderListener, find_mismatches
from qts.orders.manager import OrderManager
from qts.orders.reconcile import RETRY_INTERVAL_S, TRANSIENT, Reconciler
from qts.orders.resolve import resolve_unknown
from qts.outbox import Dispatcher
from qts.risk import SafetyState

log = telemetry.logger("orders")
_gauges_log = telemetry.logger("app")

SETTLE_TIMEOUT_S = 10.0
STARTUP_TIMEOUT_S = 30.0
_IN_FLIGHT = (
    "SELECT count(*) FROM order_attempt WHERE status IN ('PREPARED', 'SENT') AND created_at >= $1"
    " AND broker = $2 AND account = $3"
)
CHECK_INTERVAL_S = 0.5
REPEAT_AFTER_S = 15.0  # a cancel is requested again while its order stays open
EVERY_S = 5.0  # between two readings of the gauges

_SAFETY = telemetry.gauge("everbit_safety_state", "0 NORMAL, 1 WARNING, 2 FAIL, 3 LOCKDOWN")
_SWITCH = telemetry.gauge(
    "everbit_kill_switch_enabled", "1 where trading is allowed.", ("scope", "strategyKey")
)
_MARKET = telemetry.gauge(
    "everbit_market_state", "1 for a market whose orders are held.", ("market", "state")
)
_ATTEMPTS = telemetry.counter(
    "everbit_order_attempt_total", "Attempts by their state.", ("status",)
)
# Only symbols that do not trade have a series.
_STATES = (
    "SELECT state FROM safety_state"
    " WHERE (broker, account) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
)
_SWITCHES = (
    "SELECT scope, strategy_key, bool_and(trading_enabled) FROM kill_switch"
    " WHERE (broker, account) IN (SELECT * FROM unnest($1::text[], $2::text[])) GROUP BY 1, 2"
)
_SUSPENDED = (
    "SELECT DISTINCT symbol FROM market_state"
    " WHERE (broker, account) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
    " AND trade_status = 'SUSPENDED' ORDER BY symbol LIMIT 100"
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
                await self._executor.end_former_claims()
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


class TimeInForceEnforcer:
    """Cancels what is left of an order of one account when its time is over.

    OPEN ── good_until ──▶ cancel requested ──▶ CANCELLED by the venue's report ──▶ FS093
                                 └──▶ FILLED meanwhile: nothing left to report

    The time stands in the order's stored request and is compared with the wall clock, so that a
    restart, a machine that slept and another process find the same orders due. `cancel` is that of
    the order manager.
    """

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


class ReconcileCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of the ledger with the venue: orders, fills and positions, one by one."""

    orders: bool
    fills: bool
    positions: bool
    differences: tuple[str, ...] = ()  # one text each

    def __bool__(self) -> bool:
        return self.orders and self.fills and self.positions


async def check_reconciled(context: ExecutionContext, since: datetime) -> ReconcileCheck:
    """Compare and change nothing; call it when nothing is in flight."""
    orders = await _orders(context, since)
    fills = await _fills(context, since)
    rows = await context.database.fetch(SQL.positions, *context.broker.key)
    baseline = await load_baseline(context.database, context.broker.key)
    positions = [
        f"{found.symbol}: {found.ours} in the ledger, {found.venue} at the venue"
        for found in find_mismatches(await context.broker.account(), rows, baseline)
    ]
    return ReconcileCheck(
        orders=not orders,
        fills=not fills,
        positions=not positions,
        differences=(*orders, *fills, *positions),
    )


async def _orders(context: ExecutionContext, since: datetime) -> list[str]:
    there = {order.broker_order_id: order for order in await context.broker.orders(since)}
    rows = await context.database.fetch(SQL.find_orders, *context.broker.key, list(there))
    here = {row["broker_order_id"]: row for row in rows}
    wrong = [f"order {name} is not in the ledger" for name in there if name not in here]
    for name, row in here.items():
        ours, theirs = (row["state"], row["filled"]), (there[name].state, there[name].filled)
        if ours != theirs:
            wrong.append(
                f"order {name}: {ours[0]} {ours[1]} in the ledger,"
                f" {theirs[0]} {theirs[1]} at the venue"
            )
    unknown = await context.database.fetchval(SQL.count_unsettled, *context.broker.key)
    if unknown:
        wrong.append(f"{unknown} attempts with an unknown outcome")
    missing = await context.database.fetch(SQL.open_orders, *context.broker.key)
    wrong += [
        f"order {row['broker_order_id']} is open in the ledger and not at the venue"
        for row in missing
        if row["broker_order_id"] not in there
    ]
    return wrong


async def _fills(context: ExecutionContext, since: datetime) -> list[str]:
    there = {fill.trade_id: fill for fill in await context.broker.fills(since)}
    rows = await context.database.fetch(SQL.fills_since, *context.broker.key, since, list(there))
    here = {row["trade_id"]: row for row in rows}
    wrong = [f"fill {name} is not in the ledger" for name in there if name not in here]
    for name, row in here.items():
        if name not in there:
            wrong.append(f"fill {name} is not at the venue")
        elif (row["quantity"], row["price"]) != (there[name].quantity, there[name].price):
            wrong.append(f"fill {name} differs at the venue")
        elif not row["counted"] and row["origin"] != "FOREIGN":
            wrong.append(f"fill {name} is in no position")
    return wrong


class TradingGauges:
    """Updates gauges from the database every few seconds until cancelled.

    Of several accounts they show the worst state, and what all allow.
    """

    def __init__(self, database: Database, keys: Sequence[AccountKey], clock: Clock) -> None:
        self._database = database
        self._keys = [each.broker for each in keys], [each.account for each in keys]
        self._clock = clock
        for state in AttemptState:
            _ATTEMPTS.labels(state)  # start at zero, so that the first one counts as an increase

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except OperationError as error:
                if due := telemetry.log_every(60.0, "figures"):
                    _gauges_log.warning("gauges not updated", error=str(error), **due)
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        states = list(SafetyState)
        rows = await self._database.fetch(_STATES, *self._keys)
        found = [states.index(SafetyState(row[0])) for row in rows]
        _SAFETY.set(max(found) if len(found) == len(self._keys[0]) else 3)
        rows = await self._database.fetch(_SWITCHES, *self._keys)
        _SWITCH.clear()
        for row in rows:
            _SWITCH.labels(row[0], row[1]).set(row[2])
        _MARKET.clear()
        for row in await self._database.fetch(_SUSPENDED, *self._keys):
            _MARKET.labels(row[0], "SUSPENDED").set(1)
