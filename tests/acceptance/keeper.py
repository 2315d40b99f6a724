"""A strategy that buys one symbol and keeps it."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View


class Keeper(Strategy[NoParams], key="keeper"):
    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._bought = False

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if not self._bought and not view.positions:
            self._bought = True
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)
