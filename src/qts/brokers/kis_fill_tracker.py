"""Fill notices of KIS as lookups: each notice triggers a read of its order in the order list.

    notice: 3 of order 7 filled ──▶ read order 7 ── filled grew ──▶ reported
                                      ▲    └── not yet: retry after 0.1, 0.2 … 1.6 s
                                      └──────────────────────────────┘
A duplicate notice causes a few lookups without effect. While KIS rejects the subscription to the
notices, the whole list is read every few seconds instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import NamedTuple

from qts.brokers.broker import ExecutionReport, StreamGap
from qts.domain import BrokerOrder, Clock, Fill, OrderState, QtsError
from qts.venues import FillNotice

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
    """Queue of lookups for one event loop; `poll` returns what is new in the order list."""

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
