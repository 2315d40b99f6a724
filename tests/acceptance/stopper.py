"""A strategy that places one stop order, over all runs: 2 % above the first price."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from qts.domain import Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View


class Stopper(Strategy[NoParams], key="stopper"):
    symbols = ("KRW-BTC",)

    class State(msgspec.Struct):
        placed: bool = False

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002 - its signature
        if not self.state.placed:
            self.state.placed = True
            trigger, value = Decimal(round(tick.price * 1.02)), Decimal(100_000)
            yield Signal(
                symbol=tick.symbol, side=Side.BUY, at=tick.at, trigger=trigger, value=value
            )
