"""What a paper customer owns, and what his open orders hold of it."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from qts.domain import Account, FeeSchedule, Fill, Holding, OrderRequest, Side
from qts.venues import VenueRejectedError

_ZERO = Decimal(0)
_AVERAGE = Decimal("0.00000001")


class Lot(NamedTuple):
    quantity: Decimal
    cost: Decimal


class FundsHold(NamedTuple):
    symbol: str
    cash: Decimal
    quantity: Decimal


class PaperAccount:
    """A market buy may cost more than was held for it: then cash goes below zero, and is told."""

    def __init__(self, cash: Decimal, lots: dict[str, Lot] | None = None) -> None:
        self.cash = cash
        self.lots = dict(lots or {})
        self._holds: dict[str, FundsHold] = {}
        self._held_cash = _ZERO
        self._held: dict[str, Decimal] = {}

    @property
    def free_cash(self) -> Decimal:
        return self.cash - self._held_cash

    def free(self, symbol: str) -> Decimal:
        lot = self.lots.get(symbol)
        return (lot.quantity if lot else _ZERO) - self._held.get(symbol, _ZERO)

    def hold(
        self, order_id: str, request: OrderRequest, worst: Decimal, costs: FeeSchedule
    ) -> None:
        """Set aside what the order may need; Rejected when there is not enough."""
        if request.side is Side.SELL:
            if self.free(request.symbol) < request.quantity:
                raise VenueRejectedError(
                    f"{self.free(request.symbol)} of {request.symbol} can be sold, "
                    f"not {request.quantity}",
                    "insufficient_holding",
                )
        elif self.free_cash < (need := _need(request.quantity, worst, costs)):
            raise VenueRejectedError(
                f"{self.free_cash} won are free, not {need}", "insufficient_cash"
            )
        self.hold_left(order_id, request, worst, request.quantity, costs)

    def hold_left(
        self,
        order_id: str,
        request: OrderRequest,
        worst: Decimal,
        left: Decimal,
        costs: FeeSchedule,
    ) -> None:
        """The order still wants so much: hold that and no more."""
        self.release(order_id)
        if request.side is Side.SELL:
            hold = FundsHold(request.symbol, _ZERO, left)
        else:
            hold = FundsHold(request.symbol, _need(left, worst, costs), _ZERO)
        self._holds[order_id] = hold
        self._held_cash += hold.cash
        self._held[hold.symbol] = self._held.get(hold.symbol, _ZERO) + hold.quantity

    def release(self, order_id: str) -> None:
        if hold := self._holds.pop(order_id, None):
            self._held_cash -= hold.cash
            self._held[hold.symbol] -= hold.quantity

    def settle(self, fill: Fill) -> None:
        amount = fill.price * fill.quantity
        old = self.lots.get(fill.symbol, Lot(_ZERO, _ZERO))
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

    def account(self) -> Account:
        return Account(
            cash=self.cash,
            holdings=tuple(
                Holding(
                    symbol=symbol,
                    quantity=lot.quantity,
                    average_price=(lot.cost / lot.quantity).quantize(_AVERAGE),
                )
                for symbol, lot in sorted(self.lots.items())
            ),
        )


def _need(quantity: Decimal, worst: Decimal, costs: FeeSchedule) -> Decimal:
    amount = quantity * worst
    return amount + costs.of(Side.BUY, amount)
