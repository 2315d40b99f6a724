"""A strategy on a 200-minute average: a signal at its first tick, and one at every minute."""

from __future__ import annotations

from collections.abc import Iterable

from qts import Bar, Side, Signal, Strategy, Tick
from qts.domain import IntentType
from qts.strategies import NoParams, View


class MinuteTrend(Strategy[NoParams], key="minute_trend"):
    timeframes = ("1m", "5m")
    indicators = ("sma(5)", "sma(200)")

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.seen: set[str] = set()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if tick.symbol not in self.seen:
            self.seen.add(tick.symbol)
            at = view.bars(tick.symbol, "1m", 1)["at"][0]
            yield self._signal(tick.symbol, float(at), view, "start")

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        if bar.timeframe == "1m":
            yield self._signal(bar.symbol, bar.at, view, "bar")

    def _signal(self, symbol: str, at: float, view: View, what: str) -> Signal:
        fast, slow = (view.indicator(symbol, "1m", name) for name in self.indicators)
        side, kind = Side.SELL, IntentType.EXIT_SIGNAL
        if fast > slow:
            side, kind = Side.BUY, IntentType.ENTRY
        reason = f"{what} {fast!r} {slow!r}"
        return Signal(symbol=symbol, side=side, at=at, intent_type=kind, reason=reason)
