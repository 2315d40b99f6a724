"""The orders of a rehearsal: the smallest that a venue takes, placed, followed and withdrawn.

    place ──▶ id ──▶ on the stream and in the list ──▶ cancel ──▶ ended
      └── outcome unknown ──▶ withdraw searches for it until it is found or absent

Invariant: after `withdraw`, an order that was sent has ended, is proven absent, or is named in the
result, whatever happened to its requests. An order that was not sent by this rehearsal is never
cancelled.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Self, TypeVar

import msgspec

from qts.brokers.venue import Broker, StreamGap, VenueBlockedError
from qts.domain import (
    BrokerOrder,
    Clock,
    Fill,
    Instrument,
    OperationError,
    OrderBook,
    OrderRequest,
    OrderState,
    OrderType,
    OutcomeUnknownError,
    QtsError,
    Side,
    UnreachableError,
)
from qts.venues import Quote, RateLimitedError, VenueRejectedError

T = TypeVar("T")

_SEARCHED_BACK = timedelta(minutes=1)
_NOTHING_PLACED = (VenueRejectedError, RateLimitedError, VenueBlockedError, UnreachableError)

_BELOW = Decimal("0.15")  # of the best bid, for an order that must not fill
_NEAREST = Decimal("0.05")  # where the day's lowest price is nearer
_SELLABLE = Decimal("1.1")  # of the smallest order, so that what was bought can be sold


class RehearsalFailedError(OperationError):
    """A rehearsal saw something that it did not expect, or was declined."""


class RehearsalTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a rehearsal waits, in seconds."""

    seen_s: float = 20.0  # for an order in the list and on the stream
    absent_s: float = 15.0  # until an order that no list has is absent
    withdraw_s: float = 60.0  # for the end of what it placed, after a failure
    poll_s: float = 0.5


@dataclass
class _Sent:
    request: OrderRequest
    sent_at: datetime
    order_id: str | None = None
    filled: Decimal = Decimal(0)
    cancel_accepted: bool = False
    ended: bool = False

    def __str__(self) -> str:
        name = f"order {self.order_id}" if self.order_id else "an order without a known number"
        request = self.request
        price = f" at {request.price:,f}" if request.price else " at the market"
        return f"{name} ({request.side} {request.quantity:f} {request.symbol}{price})"


class ReportReader:
    """Reads the venue's own-order stream; an async context manager on one event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._latest: dict[str, BrokerOrder] = {}
        self._fills: dict[str, Fill] = {}
        self._gaps: list[str] = []
        self._failure = ""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def open(self, seconds: float) -> str:
        """Open the stream; return what its first report says."""
        self._task = asyncio.create_task(self._read(), name="rehearsal reports")
        return await self._wait(lambda: self._gaps[0] if self._gaps else None, seconds)

    async def ended(self, order_id: str, seconds: float) -> BrokerOrder:
        return await self._order(order_id, seconds, is_open=False)

    async def opened(self, order_id: str, seconds: float) -> BrokerOrder:
        return await self._order(order_id, seconds, is_open=True)

    async def filled(self, order: BrokerOrder, seconds: float) -> None:
        """Wait for the fills of all that the order has filled."""

        def found() -> bool | None:
            fills = self._fills.values()
            mine = (
                each.quantity for each in fills if each.broker_order_id == order.broker_order_id
            )
            return True if sum(mine) == order.filled else None

        await self._wait(found, seconds)

    async def _order(self, order_id: str, seconds: float, *, is_open: bool) -> BrokerOrder:
        """Return the report of an order; of one that has ended, if `is_open` is false."""

        def found() -> BrokerOrder | None:
            order = self._latest.get(order_id)
            is_expected = order is not None and (is_open or order.state is not OrderState.OPEN)
            return order if is_expected else None

        return await self._wait(found, seconds)

    async def _wait(self, found: Callable[[], T | None], seconds: float) -> T:
        gaps = len(self._gaps)
        try:
            async with asyncio.timeout(seconds):
                while (result := found()) is None:
                    if self._failure or len(self._gaps) > gaps:
                        reason = self._failure or self._gaps[-1]
                        raise RehearsalFailedError(
                            f"the own-order stream was interrupted: {reason}"
                        )
                    self._changed.clear()
                    await self._changed.wait()
                return result
        except TimeoutError:
            said = f"; it said: {self._gaps[-1]}" if self._gaps else ""
            raise RehearsalFailedError(
                f"the own-order stream reported nothing within {seconds:g} s{said}"
            ) from None

    async def _read(self) -> None:
        try:
            async with aclosing(self._broker.execution_reports()) as reports:  # type: ignore[type-var]
                async for report in reports:
                    if isinstance(report, StreamGap):
                        self._gaps.append(report.reason)
                    elif isinstance(report, Fill):
                        self._fills[report.trade_id] = report
                    else:
                        self._latest[report.broker_order_id] = report
                    self._changed.set()
        except QtsError as error:
            self._failure = str(error)
            self._changed.set()


class RehearsalOrders:
    """Places and cancels the orders of one rehearsal and knows which may be open."""

    def __init__(self, broker: Broker, clock: Clock, times: RehearsalTimes) -> None:
        self._broker = broker
        self._clock = clock
        self._times = times
        self._began = clock.now() - _SEARCHED_BACK
        self._before: frozenset[str] = frozenset()
        self._sent: list[_Sent] = []

    async def open_orders(self) -> frozenset[str]:
        """Return the open orders of the account, those of others included."""
        orders = await self._orders()
        if not self._sent:
            self._before = frozenset(orders)  # never taken for one of this rehearsal
        return frozenset(id_ for id_, each in orders.items() if each.state is OrderState.OPEN)

    async def place(self, request: OrderRequest) -> str:
        sent = _Sent(request, self._clock.now())
        self._sent.append(sent)
        try:
            sent.order_id = await self._broker.place(request)
        except OutcomeUnknownError:
            raise
        except _NOTHING_PLACED:
            self._sent.remove(sent)
            raise
        return sent.order_id

    async def cancel(self, order_id: str) -> None:
        await self._broker.cancel(order_id)

    async def listed(self, order_id: str, *, is_open: bool) -> BrokerOrder:
        """Wait until the venue lists the order as open, or as ended."""
        deadline = self._deadline(self._times.seen_s)
        while True:
            order = (await self._orders()).get(order_id)
            if order is not None and (order.state is OrderState.OPEN) == is_open:
                if not is_open:
                    self._end(order)
                return order
            if self._clock.monotonic_ns() > deadline:
                state = "open" if is_open else "ended"
                found = f"it is {order.state}" if order else "it is not in the list"
                raise RehearsalFailedError(
                    f"order {order_id} is not listed as {state} within {self._times.seen_s:g} s: "
                    f"{found}"
                )
            await self._clock.sleep(self._times.poll_s)

    async def fills(self, order: BrokerOrder) -> list[Fill]:
        """Wait until the venue lists the fills of the whole filled quantity."""
        deadline = self._deadline(self._times.seen_s)
        while True:
            found = await self._broker.fills(self._began)
            fills = [fill for fill in found if fill.broker_order_id == order.broker_order_id]
            if sum(fill.quantity for fill in fills) == order.filled:
                return fills
            if self._clock.monotonic_ns() > deadline:
                raise RehearsalFailedError(
                    f"order {order.broker_order_id} filled {order.filled:f}, and its listed fills"
                    f" are {sum(fill.quantity for fill in fills):f}"
                )
            await self._clock.sleep(self._times.poll_s)

    async def withdraw(self) -> list[str]:
        """Cancel what may be open; return what is left: orders, and what they bought or sold."""
        deadline = self._deadline(self._times.withdraw_s)
        while any(not sent.ended for sent in self._sent):
            for sent in [each for each in self._sent if not each.ended]:
                try:
                    await self._withdraw(sent)
                except QtsError:
                    continue  # tried again until the deadline
            if self._clock.monotonic_ns() > deadline:
                break
            if any(not sent.ended for sent in self._sent):
                await self._clock.sleep(self._times.poll_s)
        return [*self._open_lines(), *self._bought_lines()]

    # -- steps of a withdrawal

    async def _withdraw(self, sent: _Sent) -> None:
        if sent.order_id is None and not await self._find(sent):
            return
        if not sent.cancel_accepted:
            with suppress(VenueRejectedError):  # it has ended: the list says how
                await self._broker.cancel(sent.order_id or "")
                sent.cancel_accepted = True
        order = (await self._orders()).get(sent.order_id or "")
        if order is not None and order.state is OrderState.OPEN:
            sent.cancel_accepted = False
        elif order is not None:
            self._end(order)

    async def _find(self, sent: _Sent) -> bool:
        """Search for an order whose outcome is unknown; it has ended if it is absent."""
        known = {each.order_id for each in self._sent if each.order_id}
        found = await self._broker.find_order(sent.request, sent.sent_at, self._before | known)
        if len(found.candidates) == 1:
            sent.order_id = found.candidates[0].broker_order_id
            return True
        age_s = (self._clock.now() - sent.sent_at).total_seconds()
        if not found.candidates and not found.elsewhen and age_s > self._times.absent_s:
            sent.ended = True
        return False

    def _end(self, order: BrokerOrder) -> None:
        for sent in self._sent:
            if sent.order_id == order.broker_order_id:
                sent.ended, sent.filled = True, order.filled

    def _open_lines(self) -> list[str]:
        return [
            f"{sent} may be open{', its cancel was accepted' if sent.cancel_accepted else ''}"
            for sent in self._sent
            if not sent.ended
        ]

    def _bought_lines(self) -> list[str]:
        """Return what fills have left in the account."""
        totals: dict[str, Decimal] = {}
        for sent in self._sent:
            request = sent.request
            change = request.side.sign * sent.filled
            totals[request.symbol] = totals.get(request.symbol, Decimal(0)) + change
        return [
            f"{abs(total):f} {symbol} {'bought and not sold' if total > 0 else 'sold too many'}"
            for symbol, total in totals.items()
            if total
        ]

    async def _orders(self) -> dict[str, BrokerOrder]:
        return {each.broker_order_id: each for each in await self._broker.orders(self._began)}

    def _deadline(self, seconds: float) -> int:
        return self._clock.monotonic_ns() + round(seconds * 1e9)


class SmallestOrders:
    """The smallest orders of an instrument at the prices of this moment.

    They are a buy too far away to fill, and one at the market with its sale.
    """

    def __init__(self, instrument: Instrument, quote: Quote, book: OrderBook) -> None:
        self._instrument = instrument
        self.last = _decimal(quote.price)
        self.bid = _decimal(book.bids[0].price if book.bids else quote.price)
        self.ask = _decimal(book.asks[0].price if book.asks else quote.price)
        self._base = _decimal(quote.base) if quote.base else None

    def far_buy(self) -> OrderRequest:
        """Return a limit buy 15 % below the best bid, or at the day's lowest price.

        Raises OperationError where that is too near to the bid.
        """
        instrument = self._instrument
        price = instrument.ticks.round(self.bid * (1 - _BELOW), Side.BUY)
        if limits := instrument.daily_limits(self._base) if self._base else None:
            price = max(price, limits[0])
        if price > self.bid * (1 - _NEAREST):
            raise OperationError(
                f"the bid of {instrument.symbol} is near the lowest price, and an order there may"
                " fill; name another symbol with --symbol"
            )
        return self._request(self._smallest(price), price)

    def lower(self, request: OrderRequest) -> OrderRequest:
        """Return the limit buy one tick lower; at the day's lowest price, one tick higher."""
        ticks, price = self._instrument.ticks, request.price or Decimal(0)
        step = ticks.size(price)
        limits = self._instrument.daily_limits(self._base) if self._base else None
        is_lowest = price - step < (limits[0] if limits else step)
        other = ticks.round(price + step if is_lowest else price - step, Side.BUY)
        return self._request(self._smallest(other), other)

    def market_buy(self) -> OrderRequest:
        return self._request(self._smallest(self.bid / _SELLABLE), None)

    def market_sell(self, quantity: Decimal) -> OrderRequest:
        return self._request(quantity, None, Side.SELL)

    def _smallest(self, price: Decimal) -> Decimal:
        """Return the smallest quantity that the venue takes at this price."""
        lots = self._instrument.min_order_value / price / self._instrument.lot
        return max(Decimal(1), lots.to_integral_value(ROUND_CEILING)) * self._instrument.lot

    def _request(
        self, quantity: Decimal, price: Decimal | None, side: Side = Side.BUY
    ) -> OrderRequest:
        return OrderRequest(
            client_order_id=f"rehearsal-{uuid.uuid4()}",
            symbol=self._instrument.symbol,
            side=side,
            type=OrderType.MARKET if price is None else OrderType.LIMIT,
            quantity=quantity,
            price=price,
            is_exit=side is Side.SELL,
        )


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number)).normalize()
