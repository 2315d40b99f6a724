"""Matching engine of the simulators, and the accounts whose orders it matches.

    submit ──▶ matches the order book ──▶ rests behind the queue of its price ──▶ filled
                      │ auction: waits for the single price      │ a trade at or through it
                      └ ioc, fok: the rest is cancelled          └ cancel: the rest is cancelled

Prices and quantities are integers, so that fills add up exactly. Orders do not move the market,
but two orders cannot match the same quantity of the order book in the same second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from qts.simulators.market.rules import SimulatedBook, SimulatedLevel

State = Literal["continuous", "auction", "closed"]


class MarketTrade(NamedTuple):
    price: int
    quantity: int
    crossed: bool
    """At the single price of an auction."""


class TradableMarket(Protocol):
    """What the matching engine needs of a market."""

    @property
    def time(self) -> int: ...

    def state(self, index: int) -> State: ...

    def book(self, index: int) -> SimulatedBook: ...

    def last_trade(self, index: int) -> MarketTrade | None: ...


Side = Literal["buy", "sell"]
Lifetime = Literal["day", "ioc", "fok", "post_only"]


class SimulatedFill(NamedTuple):
    order: SimulatedOrder
    price: int
    quantity: int
    at: int
    number: int
    maker: bool


@dataclass(eq=False)
class SimulatedOrder:
    """Order at the exchange; `limit` is None for a market order."""

    number: int
    index: int
    side: Side
    quantity: int
    limit: int | None
    lifetime: Lifetime = "day"
    amount: int | None = None
    """Cash to spend instead of a quantity to buy (market buy at Upbit)."""
    placed_at: int = 0
    filled: int = 0
    paid: int = 0
    """Sum of price times quantity over its fills."""
    cancelled: int = 0
    ahead: int = 0
    """Quantity in the queue before it at its price."""
    open: bool = True
    fills: list[SimulatedFill] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        return self.quantity - self.filled - self.cancelled

    def accepts(self, price: int) -> bool:
        if self.limit is None:
            return True
        return price <= self.limit if self.side == "buy" else price >= self.limit

    def is_passed(self, price: int) -> bool:
        """Return whether a trade at a worse price than the limit implies a fill."""
        return self.accepts(price) and price != self.limit


class MatchingEngine:
    def __init__(self, market: TradableMarket, unit: int = 1) -> None:
        self._market = market
        self._unit = unit
        self._open: dict[int, list[SimulatedOrder]] = {}
        self._matched: dict[tuple[int, Side, int], int] = {}
        self._fills = 0

    def submit(self, order: SimulatedOrder) -> list[SimulatedFill]:
        """Accept an order and return the fills against the current order book."""
        order.placed_at = self._market.time
        fills: list[SimulatedFill] = []
        if self._market.state(order.index) == "continuous":
            fills = self._match(order)
        if order.open and order.lifetime in ("ioc", "fok"):
            self._cancel_rest(order)
        elif order.open:
            order.ahead = self._queue_at(order)
            self._open.setdefault(order.index, []).append(order)
        return fills

    def would_match(self, order: SimulatedOrder) -> bool:
        return next(iter(self._opposite(order)), None) is not None

    def cancel(self, order: SimulatedOrder, quantity: int | None = None) -> int:
        """Cancel the rest, or a part of it; return the cancelled quantity."""
        if not order.open:
            return 0
        cancelled = order.remaining if quantity is None else min(quantity, order.remaining)
        order.cancelled += cancelled
        if not order.remaining:
            self._close(order)
        return cancelled

    def step(self) -> list[SimulatedFill]:
        """Match resting orders after a second of the market; return the fills."""
        self._matched.clear()
        return [fill for index in list(self._open) for fill in self._step_symbol(index)]

    def end_of_day(self) -> list[SimulatedOrder]:
        """Cancel all open orders and return them."""
        orders = self.open_orders
        for order in orders:
            self._cancel_rest(order)
        return orders

    @property
    def open_orders(self) -> list[SimulatedOrder]:
        return [order for orders in self._open.values() for order in orders]

    # Matching the order book

    def _match(self, order: SimulatedOrder) -> list[SimulatedFill]:
        levels = list(self._opposite(order))
        if order.lifetime == "post_only":
            return []
        if order.lifetime == "fok" and not self._reaches(levels, order):
            return []
        fills = []
        for level in levels:
            quantity = min(level.quantity, order.remaining, self._affordable(order, level.price))
            if quantity <= 0:
                break
            key = (order.index, order.side, level.price)
            self._matched[key] = self._matched.get(key, 0) + quantity
            fills.append(self._fill(order, level.price, quantity, maker=False))
        if order.amount is not None and order.open and not self._unspent(order):
            order.quantity = order.filled
            self._close(order)
        return fills

    def _reaches(self, levels: list[SimulatedLevel], order: SimulatedOrder) -> bool:
        if order.amount is None:
            return sum(level.quantity for level in levels) >= order.remaining
        return sum(level.price * level.quantity for level in levels) >= order.amount * self._unit

    def _opposite(self, order: SimulatedOrder) -> Iterator[SimulatedLevel]:
        """Yield the levels the order accepts, less what was matched of them in this second."""
        book = self._market.book(order.index)
        for level in book.asks if order.side == "buy" else book.bids:
            if not order.accepts(level.price):
                return
            left = level.quantity - self._matched.get((order.index, order.side, level.price), 0)
            if left > 0:
                yield SimulatedLevel(level.price, left)

    def _affordable(self, order: SimulatedOrder, price: int) -> int:
        if order.amount is None:
            return order.remaining
        return self._unspent(order) // price

    def _unspent(self, order: SimulatedOrder) -> int:
        """Return the rest of the cash to spend, in price times quantity."""
        return (order.amount or 0) * self._unit - order.paid

    # Resting orders

    def _queue_at(self, order: SimulatedOrder) -> int:
        book = self._market.book(order.index)
        same = book.bids if order.side == "buy" else book.asks
        return sum(level.quantity for level in same if level.price == order.limit)

    def _step_symbol(self, index: int) -> Iterator[SimulatedFill]:
        trade = self._market.last_trade(index)
        if trade is None or self._market.state(index) == "auction":
            return
        left = {"buy": trade.quantity, "sell": trade.quantity}
        for order in sorted(self._open.get(index, ()), key=_priority):
            quantity = min(left[order.side], order.remaining)
            if trade.crossed and order.accepts(trade.price):
                price = trade.price
            elif order.is_passed(trade.price):
                price = trade.price if order.limit is None else order.limit
            elif order.limit == trade.price:
                passed = min(order.ahead, quantity)
                order.ahead -= passed
                price, quantity = trade.price, quantity - passed
            else:
                continue
            if quantity > 0:
                left[order.side] -= quantity
                yield self._fill(order, price, quantity, maker=not trade.crossed)

    def _fill(self, order: SimulatedOrder, price: int, quantity: int, maker: bool) -> SimulatedFill:
        self._fills += 1
        order.filled += quantity
        order.paid += price * quantity
        fill = SimulatedFill(order, price, quantity, self._market.time, self._fills, maker)
        order.fills.append(fill)
        if not order.remaining:
            self._close(order)
        return fill

    def _cancel_rest(self, order: SimulatedOrder) -> None:
        order.cancelled += order.remaining
        self._close(order)

    def _close(self, order: SimulatedOrder) -> None:
        order.open = False
        if order in (resting := self._open.get(order.index, [])):
            resting.remove(order)
        if not resting:
            self._open.pop(order.index, None)


def _priority(order: SimulatedOrder) -> tuple[int, int]:
    """Sort by best price, then by time."""
    if order.limit is None:
        return (-(2**62), order.number)
    return (-order.limit if order.side == "buy" else order.limit, order.number)


_MILLION = 10**6


@dataclass
class SimulatedHolding:
    quantity: int = 0
    locked: int = 0
    cost: int = 0
    """Purchase value of the quantity, in cash units."""
    bought_today: int = 0
    sold_today: int = 0


@dataclass
class Reservation:
    price: int
    """The worst price of a buy; 0 for a sale."""
    amount: int


class SimulatedAccount:
    """Account in integers: cash in the smallest unit of the market, `unit` of them to one."""

    def __init__(self, cash: int, unit: int = 1, buy_ppm: int = 0, sell_ppm: int = 0) -> None:
        self.cash = cash
        self.holdings: dict[int, SimulatedHolding] = {}
        self.bought_today = 0
        self.sold_today = 0
        self._unit = unit
        self._ppm = {"buy": buy_ppm, "sell": sell_ppm}
        self._reservations: dict[SimulatedOrder, Reservation] = {}

    @property
    def locked(self) -> int:
        return sum(each.amount for order, each in self._reservations.items() if order.side == "buy")

    @property
    def available(self) -> int:
        return self.cash - self.locked

    def holding(self, index: int) -> SimulatedHolding:
        return self.holdings.setdefault(index, SimulatedHolding())

    def sellable(self, index: int) -> int:
        holding = self.holdings.get(index)
        return holding.quantity - holding.locked if holding else 0

    def fee(self, side: str, value: int) -> int:
        return value * self._ppm[side] // _MILLION

    def cost(self, price: int, quantity: int) -> int:
        """Return the highest cost of a buy, with the fee, rounded up."""
        value = -(-price * quantity // self._unit)
        return value - (-value * self._ppm["buy"] // _MILLION)

    def affordable(self, price: int) -> int:
        per_unit = price * (_MILLION + self._ppm["buy"])
        return self.available * self._unit * _MILLION // per_unit if price else 0

    def reserve(self, order: SimulatedOrder, worst_price: int) -> bool:
        """Reserve what the order may cost; return False if there is not enough."""
        if order.side == "sell":
            if self.sellable(order.index) < order.quantity:
                return False
            self.holding(order.index).locked += order.quantity
            self._reservations[order] = Reservation(0, order.quantity)
            return True
        amount = self._unspent(order) or self.cost(worst_price, order.quantity)
        if amount > self.available:
            return False
        self._reservations[order] = Reservation(worst_price, amount)
        return True

    def can_replace(self, order: SimulatedOrder, quantity: int, worst_price: int) -> bool:
        """Return whether `quantity` of an open order could be replaced at another price."""
        reserved = self._reservations.get(order)
        if reserved is None or order.side == "sell":
            return reserved is not None
        freed = reserved.amount - self.cost(reserved.price, order.remaining - quantity)
        return self.available + freed >= self.cost(worst_price, quantity)

    def reserved(self, order: SimulatedOrder) -> int:
        reserved = self._reservations.get(order)
        return reserved.amount if reserved else 0

    def settle(self, fill: SimulatedFill) -> None:
        order, value = fill.order, fill.price * fill.quantity // self._unit
        holding = self.holding(order.index)
        fee = self.fee(order.side, value)
        if order.side == "buy":
            self.cash -= value + fee
            holding.cost += value
            holding.quantity += fill.quantity
            holding.bought_today += fill.quantity
            self.bought_today += value
        else:
            holding.cost -= holding.cost * fill.quantity // holding.quantity
            holding.quantity -= fill.quantity
            holding.sold_today += fill.quantity
            self.cash += value - fee
            self.sold_today += value

    def refresh(self, order: SimulatedOrder) -> None:
        """Release what the order no longer needs, after a fill or a cancel."""
        reserved = self._reservations.get(order)
        if reserved is None:
            return
        if order.side == "sell":
            now = order.remaining if order.open else 0
            self.holding(order.index).locked -= reserved.amount - now
        elif order.amount is not None:
            now = self._unspent(order) if order.open else 0
        else:
            now = self.cost(reserved.price, order.remaining) if order.open else 0
        reserved.amount = now
        if not order.open:
            del self._reservations[order]

    def new_day(self) -> None:
        self.bought_today = self.sold_today = 0
        for holding in self.holdings.values():
            holding.bought_today = holding.sold_today = 0

    def _unspent(self, order: SimulatedOrder) -> int:
        if order.amount is None:
            return 0
        left = order.amount - order.paid // self._unit
        return left - (-left * self._ppm["buy"] // _MILLION)
