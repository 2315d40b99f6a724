"""The same trades as another backtester, on the same bars with the same rule."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

from qts.backtest import BacktestConfig, run_backtest
from qts.domain import Bar, IntentType, Side, Timeframe
from qts.risk import RiskLimitsConfig
from qts.strategies import NoParams, Signal, Strategy, View
from tests.backtest.bars import DAY_S, FREE, MONDAY, bar_tape, minute_closes
from tests.backtest.peer_bars import DAYS, MINUTES, SLOW, UNITS, averages, peer_bars

GOLDEN = Path(__file__).with_name("golden") / "backtesting_py.json"


class Cross(Strategy[NoParams], key="cross"):
    kind = "PORTFOLIO"
    timeframes = ("1m",)

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        found = averages(view.bars(bar.symbol, "1m", SLOW)["close"].tolist())
        if found is None:
            return
        fast, slow = found
        if fast > slow and not view.quantity(bar.symbol):
            yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at, quantity=Decimal(UNITS))
        elif fast <= slow and view.quantity(bar.symbol):
            exits = IntentType.EXIT_SIGNAL
            yield Signal(symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=exits)


def test_trades_are_those_of_backtesting_py_in_time_and_price() -> None:
    closes = [at for day in range(DAYS) for at in minute_closes(MINUTES, MONDAY + day * DAY_S)]
    tape = bar_tape({"005930": list(zip(closes, peer_bars(), strict=True))}, Timeframe.M1)
    limits = RiskLimitsConfig(orders_per_day=1000, orders_per_minute=1000)
    config = BacktestConfig(costs=FREE, limits=limits, use_stops=False)
    result = run_backtest(Cross.from_params(), tape, config)
    number = {float(start): row for row, start in enumerate(tape.starts)}
    found = [
        [
            number[trade.opened_at.timestamp()],
            float(trade.entry),
            number[trade.closed_at.timestamp()],
            float(trade.exit),
        ]
        for trade in result.trades
    ]
    expected = json.loads(GOLDEN.read_text())
    assert len(expected) == 50
    assert found == expected
