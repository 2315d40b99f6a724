"""KIS's notices as questions: each names an order to look at, until the list shows what it told.

    heard 3 filled of order 7 ──▶ look at 7 ── grown ──▶ told
                                    ▲    └── not yet: again in 0.1, 0.2 … 1.6 s
                                    └────────────────────────────┘
A notice that came twice asks in vain a few times, and that is all it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import NamedTuple

from qts.brokers.broker import ExecutionReport, StreamGap
from qts.domain import BrokerOrder, Clock, Fill, OrderState, QtsError
from qts.venues import FillNotice as KisFill

_FIRST_WAIT_S = 0.1
_LOOKS = 6

_ZERO = Decimal(0)

Look = Callable[[str], Awaitable[tuple[BrokerOrder | None, list[Fill]]]]


class OrderLookup(NamedTuple):
    number: str
    tells: bool  # of something else than a fill: the order itself is news
    looks: int


class KisFillTracker:
    """For one event loop."""

    def __init__(self, look: Look, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._line: asyncio.Queue[OrderLookup | StreamGap] = asyncio.Queue()
        self._outstanding: dict[str, Decimal] = {}  # told by the stream, not yet seen
        self._later: set[asyncio.Task[None]] = set()

    # -- from the stream

    def live(self) -> None:
        self._line.put_nowait(StreamGap("listening from now on"))

    def heard(self, notice: KisFill) -> None:
        number = notice.order_no if notice.filled else notice.original_order_no or notice.order_no
        if notice.filled:
            told = Decimal(repr(notice.quantity))
            self._outstanding[number] = self._outstanding.get(number, _ZERO) + told
        self._line.put_nowait(OrderLookup(number, not notice.filled, 1))

    # -- to the one who listens

    async def next(self) -> list[ExecutionReport]:
        """What the next word of the stream has come to; may be nothing."""
        question = await self._line.get()
        if isinstance(question, StreamGap):
            return [question]
        if not question.tells and question.number not in self._outstanding:
            return []  # an earlier look has seen it
        try:
            order, fills = await self._look(question.number)
        except QtsError as error:
            return [StreamGap(f"order {question.number} could not be looked at: {error}")]
        self._settle(question, order, fills)
        notices: list[ExecutionReport] = list(fills)
        if order is not None and (question.tells or order.state is not OrderState.OPEN):
            notices.append(order)
        return notices

    def _settle(self, question: OrderLookup, order: BrokerOrder | None, fills: list[Fill]) -> None:
        number, looks = question.number, question.looks
        left = self._outstanding.get(number, _ZERO) - sum(fill.quantity for fill in fills)
        waits = order is None or (left > 0 and order.state is OrderState.OPEN)
        if waits and looks < _LOOKS:
            if left > 0:
                self._outstanding[number] = left
            self._ask_again(OrderLookup(number, question.tells and order is None, looks + 1))
        else:
            self._outstanding.pop(number, None)

    def _ask_again(self, question: OrderLookup) -> None:
        async def later() -> None:
            await self._clock.sleep(_FIRST_WAIT_S * 2 ** (question.looks - 2))
            self._line.put_nowait(question)

        task = asyncio.create_task(later(), name="kis look")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def close(self) -> None:
        for task in self._later:
            task.cancel()
