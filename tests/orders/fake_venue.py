"""A venue in memory: does what it is told, forgets nothing, and is the judge of what was placed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from qts.brokers import ExecutionReport, OrderMatches, VenueBlockedError, match_orders
from qts.domain import (
    Account,
    AccountKey,
    BrokerOrder,
    Clock,
    Fill,
    Holding,
    OrderRequest,
    OrderState,
    OrderType,
    OutcomeUnknownError,
    Side,
    UnreachableError,
)
from qts.venues import VenueRejectedError

Script = Callable[[OrderRequest], Exception | None]


CASH = Decimal(1_000_000)


def cost(fill: Fill) -> Decimal:
    """Return what a fill takes from the cash."""
    return fill.side.sign * fill.quantity * fill.price + fill.fee


class Venue:
    """A Broker. `before` and `after` may make a request fail, unplaced or placed."""

    def __init__(self, clock: Clock, name: str = "venue", *, named: bool = True) -> None:
        self.name = name
        self.key = AccountKey.of(name, "test")
        self._clock = clock
        self._named = named  # whether it keeps our identifiers
        self.placed: list[OrderRequest] = []
        self.cancels: list[str] = []
        self.book: dict[str, BrokerOrder] = {}
        self.trades: list[Fill] = []
        self.before: Script = lambda _request: None
        self.after: Script = lambda _request: None
        self.meanwhile: Callable[[str], Awaitable[None]] | None = None  # before we have its name
        self.cancel_fails: Exception | None = None
        self.is_away = False
        self.is_shut = False
        self.deposits = Decimal(0)
        self.external: dict[str, Decimal] = {}
        self.lag_s = 0.0  # before an order shows
        self.stream: asyncio.Queue[ExecutionReport | None] = asyncio.Queue()
        self._numbers = itertools.count(1)

    async def place(self, request: OrderRequest) -> str:
        if error := self.before(request):
            raise error
        self.placed.append(request)
        order_id = f"V{next(self._numbers)}"
        self.book[order_id] = BrokerOrder(
            broker_order_id=order_id,
            symbol=request.symbol,
            side=request.side,
            type=request.type,
            quantity=request.quantity,
            filled=Decimal(0),
            state=OrderState.OPEN,
            placed_at=self._clock.now(),
            price=request.price,
            client_order_id=request.client_order_id if self._named else None,
        )
        if self.meanwhile is not None:
            await self.meanwhile(order_id)
        if error := self.after(request):
            raise error
        return order_id

    async def cancel(self, order_id: str) -> None:
        self.cancels.append(order_id)
        if self.cancel_fails:
            raise self.cancel_fails
        order = self.book[order_id]
        if order.state is not OrderState.OPEN:
            raise VenueRejectedError("nothing left to cancel", "order_not_cancelable")
        self._change(order_id, state=OrderState.CANCELLED)

    async def find_order(
        self, request: OrderRequest, sent_at: datetime, known: frozenset[str]
    ) -> OrderMatches:
        self._reach()
        if self._named:
            fits = [o for o in self._shown() if o.client_order_id == request.client_order_id]
            return OrderMatches(tuple(fits))
        window = timedelta(seconds=60)
        return match_orders(self._shown(), request, (sent_at - window, sent_at + window), known)

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        self._reach()
        return [
            order
            for order in self._shown()
            if order.placed_at >= since or order.state is OrderState.OPEN
        ]

    async def fills(self, since: datetime) -> Sequence[Fill]:
        self._reach()
        return [fill for fill in self.trades if fill.at >= since]

    async def account(self) -> Account:
        self._reach()
        held = dict(self.external)
        for fill in self.trades:
            held[fill.symbol] = held.get(fill.symbol, Decimal(0)) + fill.quantity * fill.side.sign
        return Account(
            cash=self.cash,
            holdings=tuple(
                Holding(symbol=symbol, quantity=quantity, average_price=Decimal(1))
                for symbol, quantity in held.items()
                if quantity
            ),
        )

    @property
    def cash(self) -> Decimal:
        return CASH + self.deposits - sum(map(cost, self.trades), Decimal(0))

    async def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        while (notice := await self.stream.get()) is not None:
            yield notice

    # What happens there

    def trade(self, order_id: str, quantity: Decimal, price: Decimal, **more: object) -> Fill:
        order = self.book[order_id]
        number = next(self._numbers)
        fill = Fill(
            trade_id=f"T{number}",
            broker_order_id=order_id,
            symbol=order.symbol,
            side=order.side,
            quantity=quantity,
            price=price,
            fee=quantity * price / 1000,
            at=self._clock.now() + timedelta(microseconds=number),
        )
        fill = msgspec.structs.replace(fill, **more)
        self.trades.append(fill)
        filled = order.filled + quantity
        state = OrderState.FILLED if filled >= order.quantity else order.state
        self._change(order_id, filled=filled, state=state)
        return fill

    def by_hand(self, symbol: str, side: Side, quantity: Decimal) -> str:
        """Somebody else orders in our account."""
        order_id = f"V{next(self._numbers)}"
        self.book[order_id] = BrokerOrder(
            broker_order_id=order_id,
            symbol=symbol,
            side=side,
            type=OrderType.LIMIT,
            quantity=quantity,
            filled=Decimal(0),
            state=OrderState.OPEN,
            placed_at=self._clock.now(),
            price=Decimal(100),
        )
        return order_id

    def orders_of(self, identifiers: Sequence[str]) -> int:
        return sum(request.client_order_id in identifiers for request in self.placed)

    def _change(self, order_id: str, **values: object) -> None:
        self.book[order_id] = msgspec.structs.replace(self.book[order_id], **values)

    def _shown(self) -> list[BrokerOrder]:
        latest = self._clock.now() - timedelta(seconds=self.lag_s)
        return [order for order in self.book.values() if order.placed_at <= latest]

    def _reach(self) -> None:
        if self.is_shut:
            raise VenueBlockedError("418 for 10 seconds")
        if self.is_away:
            raise UnreachableError("the venue does not answer")


def lost_reply(_request: OrderRequest) -> Exception:
    return OutcomeUnknownError("the reply was lost")
