"""A strategy that buys with a bracket and leaves the exit to it."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from qts.domain import Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View


class Bracket(Strategy[NoParams], key="bracket"):
    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if view.quantity(tick.symbol) or any(each.symbol == tick.symbol for each in view.orders):
            return
        price = Decimal(str(max(tick.price, tick.ask)))
        yield Signal(
            symbol=tick.symbol,
            side=Side.BUY,
            at=tick.at,
            risk=Decimal("0.0001"),
            stop=price * Decimal("0.99"),
            target=price * Decimal("1.002"),
        )
