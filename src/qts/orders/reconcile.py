"""Reconciliation of the ledger with the venue: at the start, after a gap, periodically, on request.

    orders ─▶ recorded, foreign ones too        unknown attempts ─▶ searched for
    fills  ─▶ missing ones applied              holdings         ─▶ compared, never overwritten;
                                                                    the rest is the baseline
                                                cash             ─▶ taken where both agree

A position that differs, and did not trade during the look, is looked at again after a second; one
that differs then too raises FS070, unless an attempt without a known outcome may explain it.
Nothing new is sent before the first success, nor while reconciliations keep failing: cancels are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal

import asyncpg
import msgspec

from qts import telemetry
from qts.brokers import ExecutionReport, StreamGap, VenueBlockedError
from qts.database import Row
from qts.domain import BrokerOrder, Fill, OperationError, Side
from qts.orders.context import ExecutionContext, halt_venue, raise_ghost
from qts.orders.holdings import follow_baseline, load_baseline
from qts.orders.ledger_values import (
    SQL,
    ZERO,
    AccountListener,
    PositionMismatch,
    find_mismatches,
    quantities_between,
)
from qts.orders.resolve import ResolveCounts, resolve_unknown

OVERLAP = timedelta(seconds=60)  # clocks differ, and reports are late
MAX_READS = 3  # of holdings that differ
RECORDED_WITHIN = timedelta(seconds=1)  # from the insert of a fill to its commit
MAX_FAILURES = 3  # in a row: then nothing new is sent
RETRY_INTERVAL_S = 1.0
Difference = tuple[str, bool]  # symbol, and whether the venue has more
TRANSIENT = (OperationError, asyncpg.PostgresError)  # of the venue or the database

log = telemetry.logger("orders")
_last = telemetry.gauge("qts_reconciled_seconds", "time of the last reconciliation", ("broker",))


class ReconcileReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one reconciliation."""

    at: datetime
    orders: int = 0  # new or changed
    foreign: int = 0  # of these, not ours
    fills: int = 0  # that were missing
    resolved: ResolveCounts = ResolveCounts()
    differences: tuple[PositionMismatch, ...] = ()


class Reconciler:
    """Reconciler of one account, on one event loop; `account` is None where nothing follows it."""

    def __init__(self, context: ExecutionContext, account: AccountListener | None) -> None:
        self._context = context
        self._account = account
        self._key = context.broker.key
        self._requested = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._failures = MAX_FAILURES  # none has succeeded yet
        self._lost = False
        self._suspected: frozenset[Difference] = frozenset()  # in the last reconciliation
        self._mismatched: frozenset[Difference] = frozenset()  # in two in a row: raised
        self._is_new = False  # a difference that the one before did not show
        self._incomplete: set[str] = set()  # trade ids of fills that lack data
        self.last: ReconcileReport | None = None
        self.is_following = False
        self.is_paused = False  # reports are dropped: those of the run that has the lease

    def is_reconciled(self) -> bool:
        """Return whether the ledger is current enough for new orders."""
        return self._failures < MAX_FAILURES and not self._lost

    def request(self, reason: str) -> None:
        """Schedule a reconciliation."""
        log.debug("reconciliation requested", reason=reason)
        self._requested.set()

    async def run(self) -> None:
        """Reconcile periodically until cancelled; resolve unknown outcomes in between."""
        while True:
            self._requested.clear()
            pause_s = self._context.config.reconcile_every_s
            try:
                await self.reconcile_now()
                if self._is_new:
                    pause_s = min(RETRY_INTERVAL_S, pause_s)
            except TRANSIENT as error:
                log.warning("reconciliation failed; retrying", error=str(error))
                pause_s = min(RETRY_INTERVAL_S, pause_s)
            await self._resolve_for(pause_s)

    async def follow_reports(self) -> None:
        """Apply execution reports until cancelled."""
        self.is_following = True
        while True:
            try:
                async for report in self._context.broker.execution_reports():
                    if not self.is_paused:
                        await self.handle_report(report)
                self._gap("the stream ended")
            except TRANSIENT as error:
                self._gap(str(error))
            await self._context.clock.sleep(RETRY_INTERVAL_S)

    async def handle_report(self, report: ExecutionReport) -> None:
        """Apply a report; one that cannot be stored triggers a reconciliation."""
        try:
            if isinstance(report, StreamGap):
                self._gap(report.reason)
            elif isinstance(report, Fill):
                if await self._is_complete(report):
                    await self._context.ledger.record_fill(report)
                else:
                    self._gap("fill without price or quantity")
            else:
                await self._context.ledger.record_order(report)
        except TRANSIENT as error:
            self._gap(f"report not stored: {error}")

    async def reconcile_now(self) -> ReconcileReport:
        """Reconcile once; raise when the venue or the database does not answer."""
        async with self._one_at_a_time:
            was_lost, self._lost = self._lost, False
            try:
                report = await self._compare()
            except BaseException as error:
                self._failures += 1
                self._lost = self._lost or was_lost
                if isinstance(error, VenueBlockedError):
                    await halt_venue(self._context, str(error))
                raise
            await self._judge(await self._unexplained(report.differences))
        self._failures = 0
        self.last = report
        _last.labels(self._key.broker).set(report.at.timestamp())
        return report

    async def reconciles_cleanly(self) -> bool:
        """Reconcile once; return whether it succeeded, without differences and without a gap."""
        try:
            report = await self.reconcile_now()
        except TRANSIENT as error:
            log.warning("reconciliation failed; retrying", error=str(error))
            return False
        return not report.differences and self.is_reconciled()

    async def _unexplained(
        self, differences: tuple[PositionMismatch, ...]
    ) -> tuple[PositionMismatch, ...]:
        """Return the differences that no attempt without a known outcome may explain.

        The venue may list or name such an order later than it changes the holding.
        """
        if not differences:
            return ()
        rows = await self._context.database.fetch(SQL.undecided, *self._key)
        most = {(row["symbol"], Side(row["side"])): row["quantity"] for row in rows}
        return tuple(
            each
            for each in differences
            if abs(each.venue - each.ours)
            > most.get((each.symbol, Side.BUY if each.venue > each.ours else Side.SELL), ZERO)
        )

    async def _judge(self, differences: tuple[PositionMismatch, ...]) -> None:
        """Raise FS070, once, for what differs in two reconciliations in a row."""
        found = frozenset((each.symbol, each.venue > each.ours) for each in differences)
        confirmed, known = found & self._suspected, self._mismatched
        text = ", ".join(
            f"{each.symbol} {each.ours} in the ledger, {each.venue} at the venue"
            for each in differences
        )
        self._is_new = bool(found - self._suspected)
        if confirmed - known:
            log.error("position mismatch with venue", mismatches=text)
            if await self._context.safety.raise_once("FS070", text):
                known |= confirmed
        elif self._is_new:
            log.info("position differs from venue; checking again", mismatches=text)
        elif self._suspected and not found:
            log.info("positions agree with venue again")
        # Last, so that a code that could not be stored is raised by the next reconciliation.
        self._suspected, self._mismatched = found, known & found

    def _gap(self, reason: str) -> None:
        if self.is_paused:
            return
        log.warning("venue stream gap; reconciling", reason=reason)
        self._lost = True
        self.request(reason)

    async def _resolve_for(self, seconds: float) -> None:
        """Resolve unknown outcomes until the next reconciliation is due or requested."""
        clock = self._context.clock
        end_ns = clock.monotonic_ns() + round(seconds * 1e9)
        while (left_s := (end_ns - clock.monotonic_ns()) / 1e9) > 0:
            try:
                due_s = await self._until_due_s()
            except TRANSIENT:
                due_s = RETRY_INTERVAL_S
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, due_s)):
                    await self._requested.wait()
            if self._requested.is_set():
                return
            if due_s < left_s:
                await self._try_to_resolve()

    async def _until_due_s(self) -> float:
        config, now = self._context.config, self._context.clock.now()
        due_at = await self._context.database.fetchval(
            SQL.next_unresolved,
            *self._key,
            now,
            timedelta(seconds=config.send_within_s + config.place_timeout_s),
            timedelta(seconds=config.resolve_every_s),
        )
        return float("inf") if due_at is None else max(0.0, (due_at - now).total_seconds())

    async def _try_to_resolve(self) -> None:
        try:
            resolved = await resolve_unknown(self._context)
        except TRANSIENT as error:
            log.warning("unknown outcomes not resolved; retrying", error=str(error))
            return
        if resolved.accepted:  # its fills may have been missed
            self.request("unknown attempt found at the venue")

    async def _compare(self) -> ReconcileReport:
        context, began = self._context, self._context.clock.now()
        since = await self._since(began)
        orders = await context.broker.orders(since)
        changed, foreign = await self._apply_orders(orders)
        resolved = await resolve_unknown(context)
        await self._raise_ghosts(changed)  # those that no unknown attempt explains
        fills = await context.broker.fills(since)
        missed = await self._apply_fills(fills)
        later, differences = await self._compare_holdings(since)
        timestamps = [order.placed_at for order in orders] + [fill.at for fill in fills]
        if timestamps:  # the venue's clock may be behind: continue from its own last timestamp
            upto = min(began, max(timestamps))
            await context.database.execute(SQL.set_reconcile_mark, *self._key, upto)
        return ReconcileReport(
            at=began,
            orders=len(changed),
            foreign=foreign,
            fills=missed + later,
            resolved=resolved,
            differences=differences,
        )

    async def _since(self, now: datetime) -> datetime:
        row = await self._context.database.fetchrow(SQL.reconcile_since, *self._key)
        first = now - timedelta(seconds=self._context.config.lookback_s)
        if row is None or row["since"] is None:
            return first
        since: datetime = row["since"] - OVERLAP
        return since if row["has_mark"] else min(since, first)

    async def _apply_orders(self, orders: Sequence[BrokerOrder]) -> tuple[list[str], int]:
        """Record orders that changed; return their ids, and how many are new and not ours."""
        ids = [order.broker_order_id for order in orders]
        rows = await self._context.database.fetch(SQL.find_orders, *self._key, ids)
        here = {row["broker_order_id"]: row for row in rows}
        changed, foreign = list[str](), 0
        for order in orders:
            row = here.get(order.broker_order_id)
            if row is not None and _is_current(row, order):
                continue
            try:
                taken = await self._context.ledger.record_order(order)
            except asyncpg.IntegrityConstraintViolationError as error:
                # A manual order of an unknown kind must not block the others.
                log.error(
                    "order not recorded",
                    broker_order_id=order.broker_order_id,
                    error=str(error),
                )
                continue
            changed.append(order.broker_order_id)
            foreign += row is None and taken.attempt_id is None
        return changed, foreign

    async def _raise_ghosts(self, order_ids: Sequence[str]) -> None:
        """Raise FS043 for orders of attempts that were given up."""
        query = SQL.orders_contradicting_attempt
        for row in await self._context.database.fetch(query, *self._key, order_ids):
            await raise_ghost(self._context, row["broker_order_id"], row["id"], row["status"])

    async def _apply_fills(self, fills: Sequence[Fill]) -> int:
        ids = [fill.trade_id for fill in fills]
        rows = await self._context.database.fetch(SQL.missing_fills, *self._key, ids)
        missing = {row["trade_id"] for row in rows}
        taken = [
            await self._context.ledger.record_fill(fill)
            for fill in fills
            if fill.trade_id in missing and await self._is_complete(fill)
        ]
        return sum(taken)

    async def _is_complete(self, fill: Fill) -> bool:
        """Return whether a fill can be applied; raise FS041, once, for one that cannot."""
        if fill.quantity > 0 and fill.price > 0:
            return True
        if fill.trade_id not in self._incomplete:
            what = f"{fill.side} {fill.symbol}, order {fill.broker_order_id}"
            text = (
                f"{what}: quantity {fill.quantity:f}, price {fill.price:f}; check it at the venue"
            )
            log.error("fill lacks data; not applied", trade_id=fill.trade_id, reason=text)
            await self._context.safety.raise_once("FS041", text)
            self._incomplete.add(fill.trade_id)
        return False

    async def _trades_both_ways(self) -> bool:
        found: bool = await self._context.database.fetchval(SQL.trades_both_ways, *self._key)
        return found

    async def _untraded(
        self,
        differences: tuple[PositionMismatch, ...],
        baseline: Mapping[str, Decimal],
        before: Sequence[Row],
        took: timedelta,
    ) -> tuple[PositionMismatch, ...]:
        """Return the differences that trades during the reading do not explain.

        The ledger applies a fill before or after the venue's reply that counts it: the holding
        then fits the position between two of the fills since `before`.
        """
        symbols, recent = [each.symbol for each in differences], took + RECORDED_WITHIN
        rows = await self._context.database.fetch(SQL.recent_fills, *self._key, symbols, recent)
        start = {row["symbol"]: row["quantity"] for row in before}
        passed = {
            row["symbol"]: quantities_between(
                row["quantity"], row["fills"], start.get(row["symbol"], ZERO)
            )
            for row in rows
        }
        return tuple(
            each
            for each in differences
            if each.venue - baseline.get(each.symbol, ZERO) not in passed.get(each.symbol, ())
        )

    async def _compare_holdings(self, since: datetime) -> tuple[int, tuple[PositionMismatch, ...]]:
        context, fills = self._context, 0
        differences: tuple[PositionMismatch, ...] = ()
        for _ in range(MAX_READS):
            began_ns = context.clock.monotonic_ns()
            before = await context.database.fetch(SQL.positions, *self._key)
            began = self._account.reading_began() if self._account else 0
            both_ways = await self._trades_both_ways()
            account = await context.broker.account()
            both_ways |= await self._trades_both_ways()
            rows = await context.database.fetch(SQL.positions, *self._key)
            baseline = await load_baseline(context.database, context.broker.key)
            differences = find_mismatches(account, rows, baseline)
            if not differences:
                # A fill that the cash includes and the ledger does not shows as a difference,
                # unless one of the other side hides it.
                if self._account is not None and not both_ways:
                    positions = {row["symbol"]: row["quantity"] for row in rows}
                    self._account.account_read(began, account.cash, positions)
                break
            fills += await self._apply_fills(await context.broker.fills(since))
            took = timedelta(microseconds=(context.clock.monotonic_ns() - began_ns) // 1000)
            differences = await self._untraded(differences, baseline, before, took)
            if not differences:
                break
        differences = await follow_baseline(context, account, differences)
        await context.database.execute(
            SQL.snapshot, *self._key, context.clock.now(), account.cash, account.holdings
        )
        return fills, differences


def _is_current(row: Row, order: BrokerOrder) -> bool:
    is_linked = (
        row["origin"] == "OURS" or order.client_order_id is None or row["identifier"] is not None
    )
    return is_linked and (row["state"], row["filled"], row["quantity"] or ZERO) == (
        order.state,
        order.filled,
        order.quantity,
    )
