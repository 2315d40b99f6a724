"""Volatility breakout (변동성 돌파): buys above the open by a share of yesterday's range."""

from collections.abc import Iterable

import msgspec

from qts import Fill, IntentType, Side, Signal, Strategy, Tick, View


class Params(msgspec.Struct, frozen=True):
    k: float = 0.5


class VolatilityBreakout(Strategy[Params], key="volatility_breakout"):
    kind, timeframes, warm_up = "SWING", ("1d",), 1
    day_s = 86_400  # days of KRX and Upbit begin at midnight UTC, 09:00 in Seoul

    class State(msgspec.Struct):
        bought: dict[str, float] = {}  # the day of it: once a day, also where a stop has sold

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.opens: dict[str, tuple[float, float]] = {}  # day and its first price

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        symbol, at, day, bought = tick.symbol, tick.at, tick.at // self.day_s, self.state.bought
        if symbol not in self.opens or self.opens[symbol][0] != day:
            self.opens[symbol] = day, tick.price
        yesterday, held = view.bars(symbol, "1d", 1)[-1], view.quantity(symbol)
        target = self.opens[symbol][1] + self.params.k * (yesterday["high"] - yesterday["low"])
        if held and bought.setdefault(symbol, day) != day:
            yield Signal(symbol=symbol, side=Side.SELL, at=at, intent_type=IntentType.EXIT_SIGNAL)
        elif not held and bought.get(symbol) != day and tick.price >= target:
            bought.pop(symbol, None)  # of an earlier day
            yield Signal(symbol=symbol, side=Side.BUY, at=at)

    def on_fill(self, fill: Fill, view: View) -> Iterable[Signal]:
        self.state.bought.setdefault(fill.symbol, view.now.timestamp() // self.day_s)
        return ()
