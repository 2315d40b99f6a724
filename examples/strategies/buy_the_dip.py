"""A custom strategy: buys a symbol far below its high, exits with a small gain.

Over a simulated hour:     python examples/strategies/buy_the_dip.py
Over recorded data:       qts backtest examples/strategies/buy_the_dip.py:BuyTheDip record/
On paper, in qts.toml:    [pipeline] strategies = ["buy_the_dip.py:BuyTheDip"]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from qts import IntentType, Side, Signal, Strategy, Tick, View, run_backtest
from qts.backtest import Tape


class DipParams(msgspec.Struct, frozen=True, kw_only=True):
    """Every parameter has a default, bounds and a description."""

    fall: Annotated[
        float, msgspec.Meta(gt=0, lt=1, description="fraction below the high that is a dip")
    ] = 0.02
    gain: Annotated[
        float,
        msgspec.Meta(gt=0, lt=1, description="fraction above the entry price at which to exit"),
    ] = 0.008


class BuyTheDip(Strategy[DipParams], key="buy_the_dip"):
    kind = "SCALP"  # the stops close its positions after an hour

    def __init__(self, params: DipParams) -> None:
        super().__init__(params)
        self._high: dict[str, float] = {}

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        high = self._high[tick.symbol] = max(tick.price, self._high.get(tick.symbol, 0.0))
        position = view.positions.get(tick.symbol)
        if position is None:
            if tick.price <= high * (1 - self.params.fall):
                self._high[tick.symbol] = tick.price  # the next dip is measured from here
                yield Signal(
                    symbol=tick.symbol,
                    side=Side.BUY,
                    at=tick.at,
                    confidence=0.6,
                    reason=f"{tick.price / high - 1:.1%} below its high",
                )
        elif tick.price >= float(position.average_price) * (1 + self.params.gain):
            yield Signal(
                symbol=tick.symbol,
                side=Side.SELL,
                at=tick.at,
                intent_type=IntentType.EXIT_SIGNAL,
                reason="target reached",
            )


def waves() -> Iterator[Tick]:
    """Yield an hour of one symbol that rises and falls by 3 %."""
    for second in range(3600):
        price = 10_000 * (1 + 0.03 * math.sin(second / 200))
        yield Tick("005930", round(price / 10) * 10.0, 100.0, 0, 0, 1_794_787_200.0 + second)


if __name__ == "__main__":
    result = run_backtest(BuyTheDip.from_params({"fall": 0.055}), Tape.of_ticks(waves))
    for trade in result.trades:
        print(f"{trade.opened_at:%H:%M:%S} at {trade.entry:.0f}, out at {trade.exit:.0f}")
    print(f"{len(result.trades)} trades, {result.performance.gain:+.3%}")
