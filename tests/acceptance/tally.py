"""A strategy that numbers its signals by a count in its state, over all runs."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from qts.domain import IntentType, Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View

VALUE = Decimal(300_000)


class Tally(Strategy[NoParams], key="tally"):
    class State(msgspec.Struct):
        signals: int = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.state.signals += 1
        number, exits = str(self.state.signals), IntentType.EXIT_SIGNAL
        if view.quantity(tick.symbol):
            side = Side.SELL
            yield Signal(
                symbol=tick.symbol, side=side, at=tick.at, intent_type=exits, reason=number
            )
        else:
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, value=VALUE, reason=number)
