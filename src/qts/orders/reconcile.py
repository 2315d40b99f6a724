"""Our books beside the venue's: at the start, after every gap, now and then, and when asked.

    orders ─▶ taken over, foreign ones too      unknown attempts ─▶ looked for
    fills  ─▶ the missing ones applied          holdings         ─▶ compared, never overwritten

Nothing trades before the first look has succeeded, nor while looks keep failing: cancels flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal

import asyncpg
import msgspec

from qts import telemetry
from qts.brokers import ExecutionReport, StreamGap, VenueBlockedError
from qts.database import Row
from qts.domain import Account, BrokerOrder, Fill, OperationError
from qts.orders.context import ExecutionContext
from qts.orders.halts import halt_venue
from qts.orders.position import ZERO
from qts.orders.queries import SQL
from qts.orders.resolve import ResolveCounts, resolve_unknown

OVERLAP = timedelta(seconds=60)  # clocks differ, and news are late
LOOKS = 3  # at holdings that differ: what traded in between is on its way
FAILURES = 3  # in a row, and trading waits
RETRY_S = 1.0
TROUBLE = (OperationError, asyncpg.PostgresError)  # the venue's, or the database's

log = telemetry.logger("orders")
_last = telemetry.gauge("qts_reconciled_seconds", "When the books were compared last.", ("broker",))


class PositionMismatch(msgspec.Struct, frozen=True):
    """A holding that is not what our fills say."""

    symbol: str
    ours: Decimal
    venue: Decimal


class ReconcileReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one look has found and mended."""

    at: datetime
    orders: int = 0  # new, or not as we had them
    foreign: int = 0  # of these, placed by others
    fills: int = 0  # that had been missed
    resolved: ResolveCounts = ResolveCounts()
    differences: tuple[PositionMismatch, ...] = ()


class Reconciler:
    """For one broker, on one event loop."""

    def __init__(self, floor: ExecutionContext) -> None:
        self._floor = floor
        self._broker = floor.broker.name
        self._asked = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._failures = FAILURES  # none has succeeded yet
        self._lost = False
        self.last: ReconcileReport | None = None

    def is_reconciled(self) -> bool:
        """Whether the books are known well enough for new orders."""
        return self._failures < FAILURES and not self._lost

    def request(self, why: str) -> None:
        """Have the books compared soon."""
        log.debug("a look at the venue's books was asked for", why=why)
        self._asked.set()

    async def run(self) -> None:
        """Compare until cancelled; in between, look for what is unknown."""
        while True:
            self._asked.clear()
            pause_s = self._floor.config.reconcile_every_s
            try:
                await self.reconcile_now()
            except TROUBLE as error:
                log.warning("the books could not be compared", error=str(error))
                pause_s = min(RETRY_S, pause_s)
            await self._resolve_for(pause_s)

    async def follow_reports(self) -> None:
        """Take the venue's notices as they come, until cancelled."""
        while True:
            try:
                async for notice in self._floor.broker.execution_reports():
                    await self.handle_report(notice)
                self._gap("the stream ended")
            except TROUBLE as error:
                self._gap(str(error))
            await self._floor.clock.sleep(RETRY_S)

    async def handle_report(self, notice: ExecutionReport) -> None:
        """What cannot be kept now is asked for later."""
        try:
            if isinstance(notice, StreamGap):
                self._gap(notice.reason)
            elif isinstance(notice, Fill):
                await self._floor.ledger.record_fill(notice)
            else:
                await self._floor.ledger.record_order(notice)
        except TROUBLE as error:
            self._gap(f"a notice could not be kept: {error}")

    async def reconcile_now(self) -> ReconcileReport:
        """One whole look; raises when the venue or the database does not answer."""
        async with self._one_at_a_time:
            was_lost, self._lost = self._lost, False
            try:
                report = await self._compare()
            except BaseException as error:
                self._failures += 1
                self._lost = self._lost or was_lost
                if isinstance(error, VenueBlockedError):
                    await halt_venue(self._floor, str(error))
                raise
        self._failures = 0
        before, self.last = self.last, report
        if report.differences and (before is None or before.differences != report.differences):
            told = ", ".join(
                f"{d.symbol} {d.ours} here, {d.venue} there" for d in report.differences
            )
            log.error("holdings are not what our fills say", differences=told)
        _last.labels(self._broker).set(report.at.timestamp())
        return report

    def _gap(self, reason: str) -> None:
        log.warning("news of the venue were lost; asking for them", reason=reason)
        self._lost = True
        self.request(reason)

    async def _resolve_for(self, seconds: float) -> None:
        """Until it is time for a whole look, or one is asked for."""
        clock = self._floor.clock
        end_ns = clock.monotonic_ns() + round(seconds * 1e9)
        while (left_s := (end_ns - clock.monotonic_ns()) / 1e9) > 0:
            try:
                due_s = await self._until_due_s()
            except TROUBLE:
                due_s = RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, due_s)):
                    await self._asked.wait()
            if self._asked.is_set():
                return
            if due_s < left_s:
                await self._try_to_resolve()

    async def _until_due_s(self) -> float:
        config, now = self._floor.config, self._floor.clock.now()
        due_at = await self._floor.database.fetchval(
            SQL.next_unresolved,
            self._broker,
            now,
            timedelta(seconds=config.send_within_s + config.place_timeout_s),
            timedelta(seconds=config.resolve_every_s),
        )
        return float("inf") if due_at is None else max(0.0, (due_at - now).total_seconds())

    async def _try_to_resolve(self) -> None:
        try:
            resolved = await resolve_unknown(self._floor)
        except TROUBLE as error:
            log.warning("unknown attempts could not be looked for", error=str(error))
            return
        if resolved.accepted:  # its fills may have been missed
            self.request("an unknown attempt was placed")

    async def _compare(self) -> ReconcileReport:
        floor, began = self._floor, self._floor.clock.now()
        since = await self._since(began)
        orders = await floor.broker.orders(since)
        changed, foreign = await self._take_orders(orders)
        resolved = await resolve_unknown(floor)
        fills = await floor.broker.fills(since)
        missed = await self._take_fills(fills)
        later, differences = await self._compare_holdings(since)
        moments = [order.placed_at for order in orders] + [fill.at for fill in fills]
        if moments:  # a venue's clock may be behind ours: next time, from its own last moment on
            upto = min(began, max(moments))
            await floor.database.execute(SQL.set_reconcile_mark, self._broker, upto)
        return ReconcileReport(
            at=began,
            orders=changed,
            foreign=foreign,
            fills=missed + later,
            resolved=resolved,
            differences=differences,
        )

    async def _since(self, now: datetime) -> datetime:
        row = await self._floor.database.fetchrow(SQL.reconcile_since, self._broker)
        first = now - timedelta(seconds=self._floor.config.lookback_s)
        if row is None or row["since"] is None:
            return first
        since: datetime = row["since"] - OVERLAP
        return since if row["has_mark"] else min(since, first)

    async def _take_orders(self, orders: Sequence[BrokerOrder]) -> tuple[int, int]:
        """Those that are not as we have them; news of an attempt given up are an alarm."""
        ids = [order.broker_order_id for order in orders]
        rows = await self._floor.database.fetch(SQL.find_orders, self._broker, ids)
        here = {row["broker_order_id"]: row for row in rows}
        changed, foreign = list[str](), 0
        for order in orders:
            row = here.get(order.broker_order_id)
            if row is not None and _is_as_told(row, order):
                continue
            try:
                taken = await self._floor.ledger.record_order(order)
            except asyncpg.IntegrityConstraintViolationError as error:
                # One that a person placed in a way we do not know must not keep us from the rest.
                log.error("an order cannot be kept", order=order.broker_order_id, error=str(error))
                continue
            changed.append(order.broker_order_id)
            foreign += row is None and taken.attempt_id is None
        query = SQL.orders_contradicting_attempt
        for row in await self._floor.database.fetch(query, self._broker, changed):
            text = f"order {row['broker_order_id']} belongs to an attempt that is {row['status']}"
            log.error(text)
            await self._floor.safety.raise_code("FS040", text)
        return len(changed), foreign

    async def _take_fills(self, fills: Sequence[Fill]) -> int:
        ids = [fill.trade_id for fill in fills]
        rows = await self._floor.database.fetch(SQL.missing_fills, self._broker, ids)
        missing = {row["trade_id"] for row in rows}
        taken = [
            await self._floor.ledger.record_fill(fill) for fill in fills if fill.trade_id in missing
        ]
        return sum(taken)

    async def _compare_holdings(self, since: datetime) -> tuple[int, tuple[PositionMismatch, ...]]:
        floor, fills = self._floor, 0
        differences: tuple[PositionMismatch, ...] = ()
        for look in range(LOOKS):
            if look:  # something may have traded between our questions
                fills += await self._take_fills(await floor.broker.fills(since))
            account = await floor.broker.account()
            differences = find_mismatches(
                account, await floor.database.fetch(SQL.positions, self._broker)
            )
            if not differences:
                break
        await floor.database.execute(
            SQL.snapshot, self._broker, floor.clock.now(), account.cash, account.holdings
        )
        return fills, differences


def find_mismatches(account: Account, positions: Sequence[Row]) -> tuple[PositionMismatch, ...]:
    """Symbols of which the venue holds another quantity for us than our fills say."""
    venue = {holding.symbol: holding.quantity for holding in account.holdings}
    ours = {row["symbol"]: row["quantity"] for row in positions}
    pairs = [(s, ours.get(s, ZERO), venue.get(s, ZERO)) for s in sorted({*ours, *venue})]
    return tuple(PositionMismatch(s, here, there) for s, here, there in pairs if here != there)


def _is_as_told(row: Row, order: BrokerOrder) -> bool:
    is_linked = (
        row["origin"] == "OURS" or order.client_order_id is None or row["identifier"] is not None
    )
    return is_linked and (row["state"], row["filled"], row["quantity"] or ZERO) == (
        order.state,
        order.filled,
        order.quantity,
    )
