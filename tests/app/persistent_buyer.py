"""A strategy that tries to buy the first symbol it sees until it holds it, and counts bars."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import Bar, Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View

INTERVAL_S = 1.0


class PersistentBuyer(Strategy[NoParams], key="persistent_buyer"):
    timeframes = ("1s",)
    warm_up = 0

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._symbol = ""
        self._next_at = 0.0
        self.bars_seen: list[tuple[str, int]] = []  # symbol of each call, and how many are known

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        self.bars_seen.append((bar.symbol, len(view.bars(bar.symbol, "1s", 100))))
        return ()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self._symbol = self._symbol or tick.symbol
        if view.positions or tick.symbol != self._symbol or tick.at < self._next_at:
            return ()
        self._next_at = tick.at + INTERVAL_S
        return (Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at),)
