"""Order book as paper orders use it up."""

from __future__ import annotations

from decimal import Decimal

from qts.domain import OrderBook, Side, exact_decimal

_ZERO = Decimal(0)
_INFINITE = float("inf")


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
