"""Strategy of the benchmark of `qts optimise`: two averages of daily closes.

Every start is a line of the file that the environment names, so that runs can be counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from qts import Bar, IntentType, Side, Signal, Strategy, View


class Params(msgspec.Struct, frozen=True):
    fast: int = 5
    slow: int = 30


class Cross(Strategy[Params], key="cross"):
    kind = "PORTFOLIO"
    timeframes = ("1d",)

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        if file := os.environ.get("BENCH_STARTS"):
            with Path(file).open("a") as starts:
                starts.write(f"{os.getpid()} {params.fast} {params.slow}\n")

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        closes = view.bars(bar.symbol, "1d", self.params.slow)["close"]
        if len(closes) < self.params.slow:
            return
        is_up = closes[-self.params.fast :].mean() > closes.mean()
        if not view.quantity(bar.symbol):
            if is_up:
                yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at)
        elif not is_up:
            exits = IntentType.EXIT_SIGNAL
            yield Signal(symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=exits)
