"""A strategy that turns symbols over, and tries to sell what it does not hold."""

from __future__ import annotations

import os
from collections.abc import Iterable

from qts.domain import IntentType, Side, Tick
from qts.strategies import Signal, View
from tests.acceptance.turner import Turner

PLANTED = frozenset(os.environ.get("QTS_TEST_PLANTED", "").split())


class Seller(Turner, key="seller"):
    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if tick.symbol not in PLANTED:
            yield from super().on_tick(tick, view)
            return
        for intent in (IntentType.EXIT_SIGNAL, IntentType.ENTRY):
            yield Signal(symbol=tick.symbol, side=Side.SELL, at=tick.at, intent_type=intent)
