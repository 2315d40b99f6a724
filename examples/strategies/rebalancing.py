"""Rebalancing: brings each symbol back to its share of the equity once a month."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import msgspec

from qts import Bar, Side, Signal, Strategy, View

SEOUL = timezone(timedelta(hours=9))


class Params(msgspec.Struct, frozen=True):
    share: float = 0.1  # of the equity, in each symbol
    tolerance: float = 0.01  # a difference below it, as a share of the equity, is left


class Rebalancing(Strategy[Params], key="rebalancing"):
    kind = "PORTFOLIO"
    symbols = ("005930", "000660")
    timeframes = ("1d",)

    class State(msgspec.Struct):
        months: dict[str, str] = {}  # the last one of each symbol

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        month = f"{datetime.fromtimestamp(bar.at, SEOUL):%Y-%m}"
        if self.state.months.get(bar.symbol) == month:
            return
        self.state.months[bar.symbol] = month
        equity, held = float(view.equity), float(view.quantity(bar.symbol)) * bar.close
        missing = self.params.share * equity - held
        if abs(missing) > self.params.tolerance * equity:
            side = Side.BUY if missing > 0 else Side.SELL
            yield Signal(
                symbol=bar.symbol, side=side, at=bar.at, value=Decimal(round(abs(missing)))
            )
