"""Fill notices of KIS as lookups: each notice triggers a read of its order in the order list.

    notice: 3 of order 7 filled ──▶ read order 7 ── filled grew ──▶ reported
                                      ▲    └── not yet: retry after 0.1, 0.2 … 1.6 s
                                      └──────────────────────────────┘
A duplicate notice causes a few lookups without effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import NamedTuple

from qts.brokers.broker import ExecutionReport, StreamGap
from qts.domain import BrokerOrder, Clock, Fill, OrderState, QtsError
from qts.venues import FillNotice

_FIRST_RETRY_S = 0.1
_MAX_LOOKUPS = 6

_ZERO = Decimal(0)

LookUp = Callable[[str], Awaitable[tuple[BrokerOrder | None, list[Fill]]]]


class OrderLookup(NamedTuple):
    order_no: str
    reports_order: bool  # the notice was about the order itself, not about a fill
    attempt: int


class KisFillTracker:
    """Queue of lookups for one event loop."""

    def __init__(self, look_up: LookUp, clock: Clock) -> None:
        self._look_up = look_up
        self._clock = clock
        self._queue: asyncio.Queue[OrderLookup | StreamGap] = asyncio.Queue()
        self._outstanding: dict[str, Decimal] = {}  # in a notice, not yet in the order list
        self._retries: set[asyncio.Task[None]] = set()

    # -- from the stream

    def on_connected(self) -> None:
        self._queue.put_nowait(StreamGap("stream opened"))

    def on_notice(self, notice: FillNotice) -> None:
        order_no = notice.order_no if notice.filled else notice.original_order_no or notice.order_no
        if notice.filled:
            quantity = Decimal(repr(notice.quantity))
            self._outstanding[order_no] = self._outstanding.get(order_no, _ZERO) + quantity
        self._queue.put_nowait(OrderLookup(order_no, not notice.filled, 1))

    # -- to the reader

    async def next(self) -> list[ExecutionReport]:
        """Wait for the next lookup; return its reports, possibly none."""
        lookup = await self._queue.get()
        if isinstance(lookup, StreamGap):
            return [lookup]
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
        for task in self._retries:
            task.cancel()
