"""Moving averages on daily bars: holds a symbol while its fast average is above the slow one."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from qts import Bar, IntentType, NoParams, Side, Signal, Strategy, View


class DailyAverages(Strategy[NoParams], key="daily_averages"):
    kind = "PORTFOLIO"
    timeframes = ("1d",)
    indicators = ("sma(5)", "sma(20)")

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        fast, slow = (view.indicator(bar.symbol, "1d", name) for name in self.indicators)
        held = view.quantity(bar.symbol)
        if fast > slow and not held:
            yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at, share=Decimal("0.1"))
        elif fast < slow and held:
            exits = IntentType.EXIT_SIGNAL
            yield Signal(symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=exits)
