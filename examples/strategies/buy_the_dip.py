"""A strategy of one's own: buys what fell far below its day's high, leaves with a small gain.

Over a made-up hour:      python examples/strategies/buy_the_dip.py
Over recorded days:       qts backtest examples/strategies/buy_the_dip.py:BuyTheDip record/
On paper, in qts.toml:    [pipeline] strategies = ["buy_the_dip.py:BuyTheDip"]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from qts.backtest import Tape, run_backtest
from qts.domain import IntentType, Side
from qts.strategies import Signal, Strategy, Tick, View


class DipParams(msgspec.Struct, frozen=True, kw_only=True):
    """Every parameter has a default, bounds and a word of what it is."""

    fall: Annotated[
        float, msgspec.Meta(gt=0, lt=1, description="part below the high that is a dip")
    ] = 0.02
    gain: Annotated[
        float, msgspec.Meta(gt=0, lt=1, description="part above the cost that is enough")
    ] = 0.008


class BuyTheDip(Strategy[DipParams], key="buy_the_dip"):
    kind = "SCALP"  # how long the stops let it hold: an hour

    def __init__(self, params: DipParams) -> None:
        super().__init__(params)
        self._high: dict[str, float] = {}

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        high = self._high[tick.symbol] = max(tick.price, self._high.get(tick.symbol, 0.0))
        held = view.positions.get(tick.symbol)
        if held is None:
            if tick.price <= high * (1 - self.params.fall):
                self._high[tick.symbol] = tick.price  # the next dip is measured from here
                yield Signal(
                    symbol=tick.symbol,
                    side=Side.BUY,
                    at=tick.at,
                    confidence=0.6,
                    reason=f"{tick.price / high - 1:.1%} below its high",
                )
        elif tick.price >= float(held.average_price) * (1 + self.params.gain):
            yield Signal(
                symbol=tick.symbol,
                side=Side.SELL,
                at=tick.at,
                intent_type=IntentType.EXIT_SIGNAL,
                reason="enough",
            )


def waves() -> Iterator[Tick]:
    """An hour of one symbol that goes up and down by 3 %."""
    for second in range(3600):
        price = 10_000 * (1 + 0.03 * math.sin(second / 200))
        yield Tick("005930", round(price / 10) * 10.0, 100.0, 0, 0, 1_794_787_200.0 + second)


if __name__ == "__main__":
    result = run_backtest(BuyTheDip.from_params({"fall": 0.055}), Tape.of_ticks(waves))
    for trade in result.trades:
        print(f"{trade.opened_at:%H:%M:%S} at {trade.entry:.0f}, out at {trade.exit:.0f}")
    print(f"{len(result.trades)} trades, {result.performance.gain:+.3%}")
