"""Fills at KIS, derived from the growth of an order's filled quantity.

KIS gives fills no id. Its stream reports each fill once, twice or never; its order list reports
only the total per order. The list is therefore authoritative, and each total is stored as a step:

    list    4 filled for 280,000 ──▶ step 4 ──▶ fill ...-4, 4 at 70,000
    list   10 filled for 700,600 ──▶ step 10 ─▶ fill ...-10, 6 at 70,100

A step is committed to PostgreSQL before its fill is reported, so a fill has the same trade id
after a restart, and from the stream as from polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal
from typing import NamedTuple

from qts.brokers.kis_codec import KisOrderRow
from qts.brokers.venue import ExecutionReport, StreamGap
from qts.database import Connection, Database, Row
from qts.domain import BrokerOrder, Clock, FeeSchedule, Fill, OrderState, QtsError, Side
from qts.venues import FillNotice

_LOCK = int.from_bytes(b"kis step")  # one writer of steps at a time
_GROWN = """
    INSERT INTO kis_step (account, order_id, filled, amount, symbol, side, seen_at)
    SELECT $1, $2, $3, $4, $5, $6, $7
    WHERE NOT EXISTS (
        SELECT 1 FROM kis_step WHERE account = $1 AND order_id = $2 AND filled >= $3
    )
"""
_STEPS = """
    SELECT step.*,
        step.filled - coalesce(before.filled, 0) AS quantity,
        step.amount - coalesce(before.amount, 0) AS paid
    FROM kis_step AS step LEFT JOIN LATERAL (
        SELECT filled, amount FROM kis_step
        WHERE account = step.account AND order_id = step.order_id AND filled < step.filled
        ORDER BY filled DESC LIMIT 1
    ) AS before ON true
    WHERE step.account = $1
"""
_MOVE = "UPDATE kis_step SET account = $1 WHERE account = $2"


class KisFillStore:
    """Fill steps of one KIS account, in the table `kis_step`.

    `costs` returns what a fill of a symbol costs. `former` is the digest of the number alone, under
    which steps were stored before an account had a key.
    """

    def __init__(
        self,
        database: Database,
        account: str,
        costs: Callable[[str], FeeSchedule],
        former: str = "",
    ) -> None:
        self._database = database
        self._account = account
        self._costs = costs
        self._former = former
        self._reached: dict[str, Decimal] = {}

    async def record(self, rows: Sequence[KisOrderRow], at: datetime) -> list[Fill]:
        """Store the filled quantities that have grown; return the fills not reported before."""
        grown = [row for row in rows if row.order.filled > self.reached(row.order.broker_order_id)]
        lacking = [_without_price(row.order, at) for row in grown if not row.amount > 0]
        grown = [row for row in grown if row.amount > 0]
        if not grown:
            return lacking
        order_ids = [row.order.broker_order_id for row in grown]
        async with self._database.transaction() as tx:
            await tx.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await self._move_former(tx)
            for row in grown:
                order = row.order
                await tx.execute(
                    _GROWN, self._account, order.broker_order_id, order.filled, row.amount,
                    order.symbol, order.side, at,
                )  # fmt: skip
            steps = await tx.fetch(
                _STEPS + "AND step.order_id = ANY($2) ORDER BY step.seen_at, step.filled",
                self._account,
                order_ids,
            )
        fills = [
            self._fill(step) for step in steps if step["filled"] > self.reached(step["order_id"])
        ]
        for step in steps:
            self._reached[step["order_id"]] = max(step["filled"], self.reached(step["order_id"]))
        return lacking + fills

    async def _move_former(self, tx: Connection) -> None:
        """Move the steps of the former digest to this account."""
        if self._former:
            await tx.execute(_MOVE, self._account, self._former)

    async def since(self, moment: datetime) -> list[Fill]:
        if self._former:
            async with self._database.transaction() as tx:
                await self._move_former(tx)
            self._former = ""
        steps = await self._database.fetch(
            _STEPS + "AND step.seen_at >= $2 ORDER BY step.seen_at, step.order_id, step.filled",
            self._account,
            moment,
        )
        return [self._fill(step) for step in steps]

    def reached(self, broker_order_id: str) -> Decimal:
        """Return the largest filled quantity recorded for the order, or 0."""
        return self._reached.get(broker_order_id, Decimal(0))

    def _fill(self, step: Row) -> Fill:
        side, quantity, paid = Side(step["side"]), step["quantity"], step["paid"]
        return Fill(
            trade_id=f"{step['order_id']}-{step['filled']:.0f}",
            broker_order_id=step["order_id"],
            symbol=step["symbol"],
            side=side,
            quantity=quantity,
            # A step may cover several trades; the price is then their average.
            price=unit_price(paid, quantity),
            fee=self._costs(step["symbol"]).of(side, paid).quantize(Decimal(1), ROUND_FLOOR),
            at=step["seen_at"],
        )


def _without_price(order: BrokerOrder, at: datetime) -> Fill:
    """Return the fill of an order whose amount KIS does not give; FS041 reports it."""
    return Fill(
        trade_id=f"{order.broker_order_id}-{order.filled:.0f}",
        broker_order_id=order.broker_order_id,
        symbol=order.symbol,
        side=order.side,
        quantity=order.filled,
        price=_ZERO,
        fee=_ZERO,
        at=at,
    )


def unit_price(paid: Decimal, quantity: Decimal) -> Decimal:
    """Divide to eight decimals, since 200,000 / 3 has no finite decimal form."""
    return round(paid / quantity, 8)


POLL_INTERVAL_S = 3.0  # without notices
SUBSCRIBE_AGAIN_S = 60.0
_FIRST_RETRY_S = 0.1
_MAX_LOOKUPS = 6

_ZERO = Decimal(0)

LookUp = Callable[[str], Awaitable[tuple[BrokerOrder | None, list[Fill]]]]
Poll = Callable[[], Awaitable[list[ExecutionReport]]]


class OrderLookup(NamedTuple):
    order_no: str
    reports_order: bool  # the notice was about the order itself, not about a fill
    attempt: int


class FillPoll(NamedTuple):
    """A read of the whole order list."""


class KisFillTracker:
    """Queue of lookups for one event loop; `poll` returns what is new in the order list.

        notice: 3 of order 7 filled ──▶ read order 7 ── filled grew ──▶ reported
                                          ▲    └── not yet: retry after 0.1, 0.2 … 1.6 s
                                          └──────────────────────────────┘

    A duplicate notice causes a few lookups without effect. While KIS rejects the subscription to
    the notices, the whole list is read every few seconds instead.
    """

    def __init__(self, look_up: LookUp, poll: Poll, clock: Clock) -> None:
        self._look_up = look_up
        self._poll = poll
        self._clock = clock
        self._queue: asyncio.Queue[OrderLookup | FillPoll | StreamGap] = asyncio.Queue()
        self._polling: asyncio.Task[None] | None = None
        self._outstanding: dict[str, Decimal] = {}  # in a notice, not yet in the order list
        self._retries: set[asyncio.Task[None]] = set()

    # -- from the stream

    def on_connected(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = None
        self._queue.put_nowait(StreamGap("stream opened"))

    def on_notice(self, notice: FillNotice) -> None:
        order_no = notice.order_no if notice.filled else notice.original_order_no or notice.order_no
        if notice.filled:
            quantity = Decimal(repr(notice.quantity))
            self._outstanding[order_no] = self._outstanding.get(order_no, _ZERO) + quantity
        self._queue.put_nowait(OrderLookup(order_no, not notice.filled, 1))

    def on_rejected(self, reason: str, subscribe_again: Callable[[], None] | None) -> None:
        """Poll until notices arrive; try to subscribe again where that may help."""
        if self._polling is None:
            self._queue.put_nowait(StreamGap(f"fill notices rejected: {reason}"))
            self._polling = asyncio.create_task(
                self._poll_periodically(subscribe_again), name="kis fill polls"
            )

    async def _poll_periodically(self, subscribe_again: Callable[[], None] | None) -> None:
        again_ns = self._clock.monotonic_ns() + round(SUBSCRIBE_AGAIN_S * 1e9)
        while True:
            await self._clock.sleep(POLL_INTERVAL_S)
            if self._queue.empty():  # the last one is done
                self._queue.put_nowait(FillPoll())
            if subscribe_again is not None and self._clock.monotonic_ns() >= again_ns:
                again_ns += round(SUBSCRIBE_AGAIN_S * 1e9)
                subscribe_again()

    # -- to the reader

    async def next(self) -> list[ExecutionReport]:
        """Wait for the next lookup; return its reports, possibly none."""
        lookup = await self._queue.get()
        if isinstance(lookup, StreamGap):
            return [lookup]
        if isinstance(lookup, FillPoll):
            try:
                return await self._poll()
            except QtsError as error:
                return [StreamGap(f"poll of fills failed: {error}")]
        if not lookup.reports_order and lookup.order_no not in self._outstanding:
            return []  # an earlier lookup has reported it
        try:
            order, fills = await self._look_up(lookup.order_no)
        except QtsError as error:
            return [StreamGap(f"lookup of order {lookup.order_no} failed: {error}")]
        self._settle(lookup, order, fills)
        reports: list[ExecutionReport] = list(fills)
        if order is not None and (lookup.reports_order or order.state is not OrderState.OPEN):
            reports.append(order)
        return reports

    def _settle(self, lookup: OrderLookup, order: BrokerOrder | None, fills: list[Fill]) -> None:
        order_no, attempt = lookup.order_no, lookup.attempt
        left = self._outstanding.get(order_no, _ZERO) - sum(fill.quantity for fill in fills)
        is_pending = order is None or (left > 0 and order.state is OrderState.OPEN)
        if is_pending and attempt < _MAX_LOOKUPS:
            if left > 0:
                self._outstanding[order_no] = left
            reports_order = lookup.reports_order and order is None
            self._retry(OrderLookup(order_no, reports_order, attempt + 1))
        else:
            self._outstanding.pop(order_no, None)

    def _retry(self, lookup: OrderLookup) -> None:
        async def enqueue_later() -> None:
            await self._clock.sleep(_FIRST_RETRY_S * 2 ** (lookup.attempt - 2))
            self._queue.put_nowait(lookup)

        task = asyncio.create_task(enqueue_later(), name="kis order lookup")
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    def close(self) -> None:
        for task in (*self._retries, *([self._polling] if self._polling else [])):
            task.cancel()
