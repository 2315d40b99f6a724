"""Orders, fills and the account at the market. An open order meets the whole book once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from memory_venue.market import BASES, TICKS, Market
from qts.domain import (
    BrokerOrder,
    Clock,
    Fill,
    OrderRequest,
    OrderState,
    OrderType,
    Side,
    TimeInForce,
)
from qts.venues import VenueRejectedError

FEE = Decimal("0.0005")


@dataclass
class Order:
    request: OrderRequest
    number: str
    placed_at: datetime
    met_at: int = 0  # second of the last meeting with the book
    is_cancelled: bool = False
    fills: list[Fill] = field(default_factory=list)

    @property
    def filled(self) -> Decimal:
        return sum((fill.quantity for fill in self.fills), Decimal(0))

    @property
    def left(self) -> Decimal:
        return self.request.quantity - self.filled

    @property
    def is_open(self) -> bool:
        return not self.is_cancelled and self.left > 0

    def report(self) -> BrokerOrder:
        state = OrderState.OPEN if self.is_open else OrderState.FILLED
        if self.is_cancelled:
            state = OrderState.CANCELLED
        return BrokerOrder.of(self.request, self.number, self.placed_at, self.filled, state)


class Exchange:
    """The account of one user, and the orders in it."""

    def __init__(self, market: Market, clock: Clock, cash: Decimal) -> None:
        self.market = market
        self.clock = clock
        self.cash = cash
        self.held: dict[str, Decimal] = {}
        self.paid: dict[str, Decimal] = {}  # for what is held
        self.orders: dict[str, Order] = {}
        self.listeners: list[asyncio.Queue[Fill | BrokerOrder]] = []

    def place(self, request: OrderRequest) -> str:
        self.check(request)
        order = Order(request, f"M{len(self.orders) + 1:06}", self.clock.now())
        self.orders[order.number] = order
        self._meet(order)
        if order.is_open and not self._may_wait(request):
            self._cancel(order)
        return order.number

    def cancel(self, number: str) -> None:
        order = self.orders.get(number)
        if order is None or not order.is_open:
            raise VenueRejectedError(f"{number} is not open", "not_open")
        self._cancel(order)

    def settle(self) -> None:
        """Let every open order meet the book of this second."""
        for order in self.orders.values():
            if order.is_open:
                self._meet(order)

    def fills(self) -> Iterator[Fill]:
        for order in self.orders.values():
            yield from order.fills

    def check(self, request: OrderRequest) -> None:
        symbol, price = request.symbol, request.price
        if symbol not in BASES:
            raise VenueRejectedError(f"{symbol} is not listed", "unknown_symbol")
        if price is not None and not TICKS.has(price):
            raise VenueRejectedError(f"{price} is not on a tick", "price")
        mine = [each for each in self.orders.values() if each.is_open]
        if request.side is Side.SELL:
            selling = [each.left for each in mine if self._is_sale(each, symbol)]
            if request.quantity > self.held.get(symbol, Decimal(0)) - sum(selling):
                raise VenueRejectedError(f"not enough {symbol}", "holdings")
            return
        buying = (each for each in mine if each.request.side is Side.BUY)
        reserved = sum(each.left * (each.request.price or 0) for each in buying)
        price = price or self._best(symbol)
        if request.quantity * price * (1 + FEE) > self.cash - reserved:
            raise VenueRejectedError("not enough cash", "cash")

    def _meet(self, order: Order) -> None:
        """Fill what the book offers at the price of the order, or a better one."""
        second = int(self.clock.now().timestamp())
        if order.met_at == second:
            return
        order.met_at = second
        request = order.request
        offered = list(self._offered(request, float(second)))
        if request.time_in_force is TimeInForce.FOK and sum(q for _, q in offered) < order.left:
            return
        for price, quantity in offered:
            if order.left:
                self._fill(order, min(order.left, quantity), price)

    def _offered(self, request: OrderRequest, at: float) -> Iterator[tuple[Decimal, Decimal]]:
        """Yield price and quantity of the levels that an order may take, the best first."""
        book, sign = self.market.book(request.symbol, at), request.side.sign
        for level in book.asks if request.side is Side.BUY else book.bids:
            price = Decimal(repr(level.price))
            if request.price is not None and sign * (price - request.price) > 0:
                return
            yield price, Decimal(repr(level.quantity))

    def _fill(self, order: Order, quantity: Decimal, price: Decimal) -> None:
        request, symbol = order.request, order.request.symbol
        amount = quantity * price
        fill = Fill(
            trade_id=f"{order.number}-{len(order.fills) + 1}",
            broker_order_id=order.number,
            symbol=symbol,
            side=request.side,
            quantity=quantity,
            price=price,
            fee=amount * FEE,
            at=self.clock.now(),
        )
        order.fills.append(fill)
        self.cash -= request.side.sign * amount + fill.fee
        held, paid = self.held.get(symbol, Decimal(0)), self.paid.get(symbol, Decimal(0))
        self.held[symbol] = held + request.side.sign * quantity
        self.paid[symbol] = (
            paid + amount if request.side is Side.BUY else paid * (1 - quantity / held)
        )
        self._send(fill)
        self._send(order.report())

    def _cancel(self, order: Order) -> None:
        order.is_cancelled = True
        self._send(order.report())

    def _send(self, report: Fill | BrokerOrder) -> None:
        for listener in self.listeners:
            listener.put_nowait(report)

    def _best(self, symbol: str) -> Decimal:
        book = self.market.book(symbol, self.clock.now().timestamp())
        return Decimal(repr(book.asks[-1].price))

    @staticmethod
    def _is_sale(order: Order, symbol: str) -> bool:
        return order.request.side is Side.SELL and order.request.symbol == symbol

    @staticmethod
    def _may_wait(request: OrderRequest) -> bool:
        at_once = request.time_in_force in (TimeInForce.IOC, TimeInForce.FOK)
        return request.type is OrderType.LIMIT and not at_once
