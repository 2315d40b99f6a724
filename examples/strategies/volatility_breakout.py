"""Volatility breakout (변동성 돌파): buys above the open by a share of yesterday's range."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from qts import IntentType, Side, Signal, Strategy, Tick, View

DAY_S = 86_400  # days of KRX and Upbit begin at midnight UTC, 09:00 in Seoul


class BreakoutParams(msgspec.Struct, frozen=True):
    k: float = 0.5


class VolatilityBreakout(Strategy[BreakoutParams], key="volatility_breakout"):
    kind = "SWING"
    timeframes = ("1d",)
    warm_up = 1

    def __init__(self, params: BreakoutParams) -> None:
        super().__init__(params)
        self.opens: dict[str, tuple[float, float]] = {}  # day and its first price

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        symbol, held, day = tick.symbol, view.quantity(tick.symbol), tick.at // DAY_S
        if symbol not in self.opens or self.opens[symbol][0] != day:
            self.opens[symbol] = day, tick.price
            if held:
                exits = IntentType.EXIT_SIGNAL
                yield Signal(symbol=symbol, side=Side.SELL, at=tick.at, intent_type=exits)
        yesterday = view.bars(symbol, "1d", 1)[-1]
        target = self.opens[symbol][1] + self.params.k * (yesterday["high"] - yesterday["low"])
        if not held and tick.price >= target:
            yield Signal(symbol=symbol, side=Side.BUY, at=tick.at)
