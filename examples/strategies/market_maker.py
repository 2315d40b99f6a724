"""A market maker for paper: one order at the best bid, one at the best ask, moved with them.

    QTS_PIPELINE__STRATEGIES=examples/strategies/market_maker.py:MarketMaker qts run

It buys at the bid, sells what it has at the ask, and never has more than these two orders open.
Where a venue sends no bid and ask with its prices (Upbit), its first order is a purchase at the
last price: QTS streams the book of a symbol on order, and the ticks then have both.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from qts import Cancel, OrderType, Replace, Side, Signal, Strategy, Tick, View


class Params(msgspec.Struct, frozen=True):
    value: Decimal = Decimal(100_000)  # of each order, in won
    inventory: int = 500_000  # no purchase beyond it, in won


class MarketMaker(Strategy[Params], key="market_maker"):
    symbols = ("005930",)

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal | Cancel | Replace]:
        if not 0 < tick.bid <= tick.ask:
            return
        quotes = {Side.BUY: Decimal(str(tick.bid))}
        if tick.bid < tick.ask:
            quotes[Side.SELL] = Decimal(str(tick.ask))
        quoted = set()
        for order in view.orders:
            if order.side in quoted:
                yield Cancel(order)
            elif order.price != quotes.get(order.side, order.price):
                yield Replace(order, price=quotes[order.side])
            quoted.add(order.side)
        held = float(view.quantity(tick.symbol)) * tick.price
        allowed = {Side.BUY: held < self.params.inventory, Side.SELL: held > 0}
        for side, price in quotes.items():
            if allowed[side] and side not in quoted:
                yield Signal(
                    symbol=tick.symbol,
                    side=side,
                    at=tick.at,
                    type=OrderType.LIMIT,
                    price=price,
                    value=self.params.value,
                )

    def on_stop(self, view: View) -> Iterable[Cancel]:
        return [Cancel(order) for order in view.orders]
