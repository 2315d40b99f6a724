"""A strategy that trades in and out of its symbols and counts in its state."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from qts.domain import IntentType, Side, Tick
from qts.strategies import Signal, Strategy, View


class Params(msgspec.Struct, frozen=True):
    value: float = 300_000.0
    labels: tuple[str, ...] = ("none",)


class InAndOut(Strategy[Params], key="in_and_out"):
    class State(msgspec.Struct):
        signals: int = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.state.signals += 1
        reason = f"{self.key} {'+'.join(self.params.labels)} {self.state.signals}"
        if view.quantity(tick.symbol):
            kind, side = IntentType.EXIT_SIGNAL, Side.SELL
            yield Signal(symbol=tick.symbol, side=side, at=tick.at, intent_type=kind, reason=reason)
        else:
            value = Decimal(str(self.params.value))
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, value=value, reason=reason)
