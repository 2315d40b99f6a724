"""A strategy that holds a few symbols of each venue for one tick, and sells them at the next."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import IntentType, Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View

SYMBOLS = 4  # of each venue


class Both(Strategy[NoParams], key="both"):
    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._known: dict[bool, set[str]] = {True: set(), False: set()}

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        known = self._known[tick.symbol.startswith("KRW-")]
        if len(known) < SYMBOLS:
            known.add(tick.symbol)
        if view.quantity(tick.symbol):
            intent = IntentType.EXIT_SIGNAL
            yield Signal(symbol=tick.symbol, side=Side.SELL, at=tick.at, intent_type=intent)
        elif tick.symbol in known:
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)
