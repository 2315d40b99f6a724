"""Tapes of bars for tests, a scripted strategy on bars, and the check that no fill looks ahead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from qts.backtest import BacktestConfig, BacktestResult, BarTape, run_backtest
from qts.brokers import FeesConfig
from qts.domain import Bar, Fill, IntentType, OrderType, Side, Timeframe
from qts.feed import FileRows
from qts.strategies import NoParams, Signal, Strategy, View

# ruff: noqa: ARG002 - signatures of Strategy

DAY_S = 86_400
MONDAY = 1_794_787_200.0  # 2026-11-16, 09:00 in Seoul: midnight UTC
CLOSE_S = 23_400  # 15:30 in Seoul
FREE = FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0)

Prices = tuple[float, float, float, float]


def day_closes(count: int) -> list[float]:
    """Return the closes of so many days, weekends left out."""
    days = [n for n in range(count * 2) if n % 7 < 5][:count]
    return [MONDAY + n * DAY_S + CLOSE_S for n in days]


def minute_closes(count: int, first: float = MONDAY) -> list[float]:
    return [first + 60 * (n + 1) for n in range(count)]


def bar_tape(
    symbols: Mapping[str, Sequence[tuple[float, Prices]]],
    timeframe: Timeframe = Timeframe.D1,
    volume: float = 1000.0,
) -> BarTape:
    """Return bars given by symbol as closes and prices."""
    rows = [(symbol, at, *prices) for symbol, bars in symbols.items() for at, prices in bars]
    names, *columns = zip(*rows, strict=True)
    fields = dict(zip(("at", "open", "high", "low", "close"), map(np.array, columns), strict=True))
    fields = {name: column.astype(np.float64) for name, column in fields.items()}
    fields |= {"volume": np.full(len(rows), volume), "value": np.zeros(len(rows))}
    return BarTape.of_rows([FileRows(timeframe, np.array(names, object), fields)])


class OnBars(Strategy[NoParams], key="on_bars"):
    """Buys and sells on the closes of the given bars, counted from 0 by symbol."""

    kind = "PORTFOLIO"
    timeframes: Sequence[str] = ("1d",)
    buys: frozenset[int] = frozenset()
    sells: frozenset[int] = frozenset()
    more: Mapping[str, Any] = {}
    target: Decimal | None = None

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.seen: list[Bar] = []

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        number = sum(each.symbol == bar.symbol for each in self.seen)
        self.seen.append(bar)
        if number in self.buys:
            yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at, **self.more)
        if number in self.sells:
            exits = IntentType.EXIT_SIGNAL
            yield Signal(symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=exits)

    def on_fill(self, fill: Fill, view: View) -> Iterable[Signal]:
        if self.target is not None and fill.side is Side.BUY:
            yield Signal(
                symbol=fill.symbol,
                side=Side.SELL,
                at=view.now.timestamp(),
                type=OrderType.LIMIT,
                price=self.target,
                intent_type=IntentType.EXIT_TP,
            )


def on_bars(
    buys: Iterable[int], sells: Iterable[int] = (), timeframes: Sequence[str] = ("1d",), **more: Any
) -> OnBars:
    strategy = OnBars.from_params()
    strategy.buys, strategy.sells = frozenset(buys), frozenset(sells)
    strategy.timeframes, strategy.more = timeframes, more
    return strategy


def run(strategy: Any, tape: BarTape, **settings: Any) -> BacktestResult:
    return run_backtest(strategy, tape, BacktestConfig(**{"costs": FREE, **settings}))


def assert_fills_are_inside(result: BacktestResult, tape: BarTape) -> None:
    """Check that each fill has a price of its bar, and none the close it was decided on."""
    bars = [
        (tape.symbols[symbol], start, at, Decimal(repr(low)), Decimal(repr(high)))
        for (symbol, at, _, high, low, *_), start in zip(
            tape.rows.tolist(), tape.starts.tolist(), strict=True
        )
    ]
    decided = {f"B{n + 1}": each.decided_at for n, each in enumerate(result.proposals)}
    for fill in result.fills:
        at = fill.at.timestamp()
        assert any(
            symbol == fill.symbol
            and start <= at <= close
            and low <= fill.price <= high
            and (
                decided[fill.broker_order_id].timestamp() < close
                or result.proposals[int(fill.broker_order_id[1:]) - 1].strategy_key == "risk"
            )
            for symbol, start, close, low, high in bars
        ), f"{fill} is in no bar after its decision"


def equity_at(result: BacktestResult, tape: BarTape, at: float) -> float:
    """Return cash and positions at their last close, computed from the fills up to a time."""
    cash, held = result.settings.cash, dict[str, Decimal]()
    for fill in result.fills:
        if fill.at.timestamp() <= at:
            signed = fill.side.sign * fill.quantity
            cash -= signed * fill.price + fill.fee
            held[fill.symbol] = held.get(fill.symbol, Decimal(0)) + signed
    value = 0.0
    for symbol, quantity in held.items():
        number = tape.symbols.index(symbol)
        rows = tape.rows[(tape.rows["symbol"] == number) & (tape.rows["at"] <= at)]
        value += float(quantity) * (float(rows["close"][-1]) if len(rows) else math.nan)
    return float(cash) + value
