"""What a customer owns: cash and holdings, and what open orders hold of them."""

from __future__ import annotations

from dataclasses import dataclass

from qts.simulators.matching import SimulatedFill, SimulatedOrder

_MILLION = 10**6


@dataclass
class SimulatedHolding:
    quantity: int = 0
    locked: int = 0
    cost: int = 0
    """What the quantity was bought for, in cash units."""
    bought_today: int = 0
    sold_today: int = 0


@dataclass
class Hold:
    price: int
    """The worst price a buy is paid at; 0 for a sale."""
    amount: int


class SimulatedAccount:
    """Whole numbers throughout: cash in the market's smallest unit, `unit` of them to one."""

    def __init__(self, cash: int, unit: int = 1, buy_ppm: int = 0, sell_ppm: int = 0) -> None:
        self.cash = cash
        self.holdings: dict[int, SimulatedHolding] = {}
        self.bought_today = 0
        self.sold_today = 0
        self._unit = unit
        self._ppm = {"buy": buy_ppm, "sell": sell_ppm}
        self._holds: dict[SimulatedOrder, Hold] = {}

    @property
    def locked(self) -> int:
        return sum(hold.amount for order, hold in self._holds.items() if order.side == "buy")

    @property
    def available(self) -> int:
        return self.cash - self.locked

    def holding(self, index: int) -> SimulatedHolding:
        return self.holdings.setdefault(index, SimulatedHolding())

    def sellable(self, index: int) -> int:
        held = self.holdings.get(index)
        return held.quantity - held.locked if held else 0

    def fee(self, side: str, value: int) -> int:
        return value * self._ppm[side] // _MILLION

    def need(self, price: int, quantity: int) -> int:
        """What buying costs at most, fee included, rounded against the customer."""
        value = -(-price * quantity // self._unit)
        return value - (-value * self._ppm["buy"] // _MILLION)

    def affordable(self, price: int) -> int:
        per_unit = price * (_MILLION + self._ppm["buy"])
        return self.available * self._unit * _MILLION // per_unit if price else 0

    def reserve(self, order: SimulatedOrder, worst_price: int) -> bool:
        """Set aside what the order may cost; False when there is not enough."""
        if order.side == "sell":
            if self.sellable(order.index) < order.quantity:
                return False
            self.holding(order.index).locked += order.quantity
            self._holds[order] = Hold(0, order.quantity)
            return True
        amount = self._budget(order) or self.need(worst_price, order.quantity)
        if amount > self.available:
            return False
        self._holds[order] = Hold(worst_price, amount)
        return True

    def can_replace(self, order: SimulatedOrder, quantity: int, worst_price: int) -> bool:
        """Whether so much of an open order could be placed anew at another price."""
        hold = self._holds.get(order)
        if hold is None or order.side == "sell":
            return hold is not None
        freed = hold.amount - self.need(hold.price, order.remaining - quantity)
        return self.available + freed >= self.need(worst_price, quantity)

    def held(self, order: SimulatedOrder) -> int:
        hold = self._holds.get(order)
        return hold.amount if hold else 0

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
        """Let go of what the order no longer needs, after a fill or a cancel."""
        hold = self._holds.get(order)
        if hold is None:
            return
        if order.side == "sell":
            now = order.remaining if order.open else 0
            self.holding(order.index).locked -= hold.amount - now
        elif order.budget is not None:
            now = self._budget(order) if order.open else 0
        else:
            now = self.need(hold.price, order.remaining) if order.open else 0
        hold.amount = now
        if not order.open:
            del self._holds[order]

    def new_day(self) -> None:
        self.bought_today = self.sold_today = 0
        for holding in self.holdings.values():
            holding.bought_today = holding.sold_today = 0

    def _budget(self, order: SimulatedOrder) -> int:
        if order.budget is None:
            return 0
        left = order.budget - order.paid // self._unit
        return left - (-left * self._ppm["buy"] // _MILLION)
