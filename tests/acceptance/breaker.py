"""A strategy whose every call fails."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import Tick
from qts.strategies import NoParams, Signal, Strategy, View


class Breaker(Strategy[NoParams], key="breaker"):
    def on_tick(self, tick: Tick, _view: View) -> Iterable[Signal]:
        raise ValueError(f"no idea about {tick.symbol}")
