"""Strategies that buy one symbol, or ten, and keep them."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import Side, Tick
from qts.strategies import NoParams, Signal, Strategy, View


class Keeper(Strategy[NoParams], key="keeper"):
    count = 1

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._asked: set[str] = set()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        asked = self._asked
        if (view.positions and not asked) or len(asked) == self.count or tick.symbol in asked:
            return
        asked.add(tick.symbol)
        yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)


class KeeperOfTen(Keeper, key="keeper_of_ten"):
    """Buys so many that the price of one soon rises."""

    count = 10
