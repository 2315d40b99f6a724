"""A strategy that buys what it does not hold, and sells it again at its next tick."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import IntentType, Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View

MARKETS = 6


class Turner(Strategy[NoParams], key="turner"):
    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._known: set[str] = set()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if len(self._known) < MARKETS:
            self._known.add(tick.symbol)
        if view.quantity(tick.symbol):
            intent = IntentType.EXIT_SIGNAL
            yield Signal(symbol=tick.symbol, side=Side.SELL, at=tick.at, intent_type=intent)
        elif tick.symbol in self._known:
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)
