"""The smallest orders that a venue takes of an instrument, at the prices of this moment."""

from __future__ import annotations

import uuid
from decimal import ROUND_CEILING, Decimal

from qts.domain import Instrument, OperationError, OrderBook, OrderRequest, OrderType, Side
from qts.venues import Quote

_BELOW = Decimal("0.15")  # of the best bid, for an order that must not fill
_NEAREST = Decimal("0.05")  # where the day's lowest price is nearer
_SELLABLE = Decimal("1.1")  # of the smallest order, so that what was bought can be sold


class SmallestOrders:
    """Orders of a rehearsal: a buy too far away to fill, and one at the market with its sale."""

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
