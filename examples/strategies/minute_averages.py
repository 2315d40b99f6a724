"""Moving averages on minute bars: enters when the fast one rises above the slow one, exits below.

Over recorded data:       qts backtest examples/strategies/minute_averages.py:MinuteAverages record/
On paper, in qts.toml:    [pipeline] strategies = ["minute_averages.py:MinuteAverages"]
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from qts import Bar, IntentType, Side, Signal, Strategy, View


class AverageParams(msgspec.Struct, frozen=True):
    fast: int = 5
    slow: int = 20


class MinuteAverages(Strategy[AverageParams], key="minute_averages"):
    kind = "SWING"
    timeframes = ("1m",)

    def __init__(self, params: AverageParams) -> None:
        super().__init__(params)
        self.indicators = (f"sma({params.fast})", f"sma({params.slow})")

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        fast, slow = (view.indicator(bar.symbol, "1m", str(name)) for name in self.indicators)
        held = view.quantity(bar.symbol)
        if fast > slow and not held:
            yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at)
        elif fast < slow and held:
            exits = IntentType.EXIT_SIGNAL
            yield Signal(symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=exits)
