"""Account of a customer: cash and holdings, and what open orders reserve of them."""

from __future__ import annotations

from dataclasses import dataclass

from qts.simulators.matching import SimulatedFill, SimulatedOrder

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
