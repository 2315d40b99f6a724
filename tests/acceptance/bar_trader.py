"""A strategy that buys at the close of a bar, and sells at the next one."""

from __future__ import annotations

from collections.abc import Iterable

from qts import Bar, Side, Signal, Strategy
from qts.domain import IntentType
from qts.strategies import NoParams, View


class BarTrader(Strategy[NoParams], key="bar_trader"):
    timeframes = ("1s",)
    indicators = ("sma(2)",)
    warm_up = 0
    timer_s = 1.0

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        average = view.indicator(bar.symbol, "1s", "sma(2)")
        if view.quantity(bar.symbol):
            intent, reason = IntentType.EXIT_SIGNAL, f"{average:g}"
            yield Signal(
                symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=intent, reason=reason
            )
        elif len(view.bars(bar.symbol, "1s", 2)) == 2:
            yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at, reason=f"{average:g}")
