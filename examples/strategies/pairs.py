"""A pair without short sales: holds the one of two related symbols that is cheap to the other.

The ratio of the two prices is compared with its mean over `days`. Where it is `entry` standard
deviations below, the first symbol is cheap; above, the second. Back at the mean it is sold.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from qts import Bar, IntentType, Side, Signal, Strategy, View


class Params(msgspec.Struct, frozen=True):
    days: int = 20
    entry: float = 1.5
    share: Decimal = Decimal("0.1")  # of the equity


class Pairs(Strategy[Params], key="pairs"):
    kind = "PORTFOLIO"
    symbols = ("005930", "000660")
    timeframes = ("1d",)

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        first, second = (view.bars(each, "1d", self.params.days) for each in self.symbols)
        if len(first) < self.params.days or len(second) < self.params.days:
            return
        if first["at"][-1] != second["at"][-1]:  # the other one has not closed yet
            return
        ratio = first["close"] / second["close"]
        spread = (ratio[-1] - ratio.mean()) / (ratio.std() or 1)
        for symbol, cheap in zip(self.symbols, (-spread, spread), strict=True):
            held = view.quantity(symbol)
            if cheap > self.params.entry and not held:
                yield Signal(symbol=symbol, side=Side.BUY, at=bar.at, share=self.params.share)
            elif cheap <= 0 and held:
                exits = IntentType.EXIT_SIGNAL
                yield Signal(symbol=symbol, side=Side.SELL, at=bar.at, intent_type=exits)
