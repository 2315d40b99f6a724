"""What paper orders use up: cash and lots of their account, and the order book."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from qts.domain import (
    Account,
    FeeSchedule,
    Fill,
    Holding,
    OrderBook,
    OrderRequest,
    Side,
    exact_decimal,
)
from qts.venues import VenueRejectedError

_ZERO = Decimal(0)
_AVERAGE = Decimal("0.00000001")

_INFINITE = float("inf")


class Lot(msgspec.Struct, frozen=True):
    quantity: Decimal
    cost: Decimal


_NO_LOT = Lot(_ZERO, _ZERO)


class FundsHold(msgspec.Struct, frozen=True):
    symbol: str
    cash: Decimal
    quantity: Decimal


class PaperAccount:
    """Balance of the paper venue. Cash may go negative: a market buy may cost more than it held."""

    def __init__(self, cash: Decimal, lots: dict[str, Lot] | None = None) -> None:
        self.cash = cash
        self.lots = dict(lots or {})
        self._holds: dict[str, FundsHold] = {}
        self._held_cash = _ZERO
        self._held_quantity: dict[str, Decimal] = {}

    @property
    def free_cash(self) -> Decimal:
        return self.cash - self._held_cash

    def free(self, symbol: str) -> Decimal:
        lot = self.lots.get(symbol)
        return (lot.quantity if lot else _ZERO) - self._held_quantity.get(symbol, _ZERO)

    def hold(
        self, broker_order_id: str, request: OrderRequest, worst: Decimal, costs: FeeSchedule
    ) -> None:
        """Hold the funds the order may need; raise VenueRejectedError if they are not free."""
        hold = _funds(request, worst, request.quantity, costs)
        if hold.quantity:
            if (free := self.free(request.symbol)) < request.quantity:
                raise VenueRejectedError(
                    f"{free} of {request.symbol} can be sold, not {request.quantity}",
                    "insufficient_holding",
                )
        elif self.free_cash < hold.cash:
            raise VenueRejectedError(
                f"{self.free_cash} won are free, not {hold.cash}", "insufficient_cash"
            )
        self._add(broker_order_id, hold)

    def hold_remaining(
        self,
        broker_order_id: str,
        request: OrderRequest,
        worst: Decimal,
        remaining: Decimal,
        costs: FeeSchedule,
    ) -> None:
        """Replace the order's hold by one for its remaining quantity."""
        self.release(broker_order_id)
        self._add(broker_order_id, _funds(request, worst, remaining, costs))

    def _add(self, broker_order_id: str, hold: FundsHold) -> None:
        self._holds[broker_order_id] = hold
        self._held_cash += hold.cash
        self._held_quantity[hold.symbol] = (
            self._held_quantity.get(hold.symbol, _ZERO) + hold.quantity
        )

    def release(self, broker_order_id: str) -> None:
        if hold := self._holds.pop(broker_order_id, None):
            self._held_cash -= hold.cash
            self._held_quantity[hold.symbol] -= hold.quantity

    def hold_cash(self, cash: Decimal) -> None:
        """Hold cash for an order that is kept elsewhere."""
        self._held_cash += cash

    def release_cash(self, cash: Decimal) -> None:
        self._held_cash -= cash

    def pass_hold(self, cash: Decimal) -> None:
        """Hold and release what an order needed that is filled: free cash keeps its digits."""
        self._held_cash = self._held_cash + cash - cash

    def settle(self, fill: Fill) -> None:
        amount = fill.price * fill.quantity
        old = self.lots.get(fill.symbol, _NO_LOT)
        if fill.side is Side.BUY:
            self.cash -= amount + fill.fee
            lot = Lot(old.quantity + fill.quantity, old.cost + amount)
        else:
            self.cash += amount - fill.fee
            left = old.quantity - fill.quantity
            lot = Lot(left, old.cost * left / old.quantity)
        if lot.quantity:
            self.lots[fill.symbol] = lot
        else:
            self.lots.pop(fill.symbol, None)

    def snapshot(self) -> Account:
        return account_of(self.cash, self.lots)


def account_of(cash: Decimal, lots: dict[str, Lot]) -> Account:
    return Account(
        cash=cash,
        holdings=tuple(
            Holding(
                symbol=symbol,
                quantity=lot.quantity,
                average_price=(lot.cost / lot.quantity).quantize(_AVERAGE),
            )
            for symbol, lot in sorted(lots.items())
        ),
    )


def _funds(
    request: OrderRequest, worst: Decimal, quantity: Decimal, costs: FeeSchedule
) -> FundsHold:
    """Return what an order needs for a quantity: that of a sale, or cash at its worst price."""
    if request.side is Side.SELL:
        return FundsHold(request.symbol, _ZERO, quantity)
    amount = quantity * worst
    return FundsHold(request.symbol, amount + costs.of(Side.BUY, amount), _ZERO)


class BookDepth:
    """What paper orders have left of an order book."""

    def __init__(self, book: OrderBook) -> None:
        self.book = book
        self._taken = {Side.BUY: _ZERO, Side.SELL: _ZERO}

    def left(self, side: Side) -> list[tuple[Decimal, Decimal]]:
        """Return prices and quantities that an order of this side can still take, best first."""
        taken, found = self._taken[side], list[tuple[Decimal, Decimal]]()
        for price, quantity in self.book.asks if side is Side.BUY else self.book.bids:
            whole = Decimal(int(quantity)) if quantity == int(quantity) else exact(quantity)
            used = min(taken, whole)
            taken -= used
            if whole > used and 0 < price < _INFINITE:
                found.append((exact(price), whole - used))
        return found

    def take(self, side: Side, quantity: Decimal) -> None:
        self._taken[side] += quantity

    def worst_price(self, side: Side, quantity: Decimal) -> Decimal | None:
        """Return the last price that an order of this quantity reaches; None: the side is empty."""
        price = None
        for price, held in self.left(side):  # noqa: B007 - the last one is returned
            quantity -= held
            if quantity <= 0:
                break
        return price


def exact(number: float | Decimal) -> Decimal:
    return exact_decimal(number) if isinstance(number, float) else Decimal(number)
