"""A strategy that turns one symbol in four as Pacer does, and buys and holds most others."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from qts.domain import Side, Tick
from qts.strategies import Signal, View
from tests.faults import evaluated_ticks
from tests.faults.pacer import Pacer

MANUAL = "KRW-BTC"  # left to the operator

evaluated_ticks.install()


class Holder(Pacer, key="holder"):
    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if tick.symbol == MANUAL:
            return ()
        if zlib.crc32(tick.symbol.encode()) % 4 == 0:
            return super().on_tick(tick, view)
        if view.quantity(tick.symbol):
            return ()
        return (Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at),)
