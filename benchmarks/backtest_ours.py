"""The rule of the peers in QTS: compiled, the same in plain Python, and as a strategy of bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from benchmarks.backtest_rule import (
    BAR_S,
    CASH,
    FIRST_OPEN_S,
    UNITS,
    Bars,
    Rule,
    RunResult,
    Trade,
)
from qts import Bar, IntentType, Side, Signal, Strategy, View
from qts.backtest import BacktestConfig, BacktestResult, BarTape, Chunk, Tape, run_backtest
from qts.brokers import FeesConfig
from qts.domain import Timeframe
from qts.feed import FileRows
from qts.risk import RiskLimitsConfig
from qts.strategies import MovingAverageSwing

_PART = 100_000  # events of a chunk
# The gate checks every order; its limits are above what the rule does.
CONFIG = BacktestConfig(
    cash=Decimal(CASH),
    limits=RiskLimitsConfig(
        max_order_value=CASH,
        max_quantity=UNITS,
        max_exposure=1.0,
        max_symbol_exposure=1.0,
        daily_loss=1.0,
        max_open_symbols=10_000,
        orders_per_day=1_000_000,
        orders_per_minute=1_000_000,
    ),
    use_stops=False,
    costs=FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0),
    sample_s=3600,
)


def closes(bars: Bars) -> Tape:
    """Return the closes as a tape of ticks, one a bar."""
    symbols, length = len(bars.symbols), bars.length
    numbers = np.arange(symbols, dtype=np.int32)
    at = bars.closes_at.astype(np.float64)
    step = max(1, _PART // symbols)

    def chunks(_tape: Tape) -> Iterable[Chunk]:
        for first in range(0, length, step):
            part = slice(first, min(first + step, length))
            price = bars.close[:, part].T.ravel()
            rows, zeros = len(price) // symbols, np.zeros(len(price))
            when = np.repeat(at[part], symbols)
            yield Chunk(np.tile(numbers, rows), price, zeros, zeros, zeros, when)

    return Tape(bars.symbols, chunks, content="closes of the benchmark's bars")


def on_closes(bars: Bars, rule: Rule, way: Any) -> Callable[[], RunResult]:
    """Return a trial of the built-in strategy over the closes."""
    params = {"fast": rule.fast, "slow": rule.slow, "margin": 0}

    def trial() -> RunResult:
        strategy = MovingAverageSwing.from_params(params)
        found = run_backtest(strategy, closes(bars), CONFIG, way=way)
        # A tick is its bar's close, and the bar that an order waits for has one price.
        return RunResult(found.seconds, _trades(found, FIRST_OPEN_S + BAR_S))

    return trial


class CrossParams(msgspec.Struct, frozen=True):
    fast: int = 20
    slow: int = 100


class Cross(Strategy[CrossParams], key="cross"):
    """The rule in plain Python, called with every bar."""

    kind = "SWING"
    timeframes = ("1m",)

    def __init__(self, params: CrossParams) -> None:
        super().__init__(params)
        self._count: dict[str, int] = {}
        self._fast: dict[str, float] = {}
        self._slow: dict[str, float] = {}
        self._side: dict[str, int] = {}

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        symbol, close, params = bar.symbol, bar.close, self.params
        count = self._count[symbol] = self._count.get(symbol, 0) + 1
        fast, slow = self._fast.get(symbol, close), self._slow.get(symbol, close)
        fast += (close - fast) * 2.0 / (params.fast + 1.0)
        slow += (close - slow) * 2.0 / (params.slow + 1.0)
        self._fast[symbol], self._slow[symbol] = fast, slow
        if count < params.slow:
            return ()
        before = self._side.get(symbol, 0)
        side = self._side[symbol] = 1 if fast > slow else -1 if fast < slow else before
        if view.quantity(symbol):
            if side < 0:
                exits = IntentType.EXIT_SIGNAL
                return (Signal(symbol=symbol, side=Side.SELL, at=bar.at, intent_type=exits),)
        elif before < 0 < side:
            return (Signal(symbol=symbol, side=Side.BUY, at=bar.at),)
        return ()


def on_bars(bars: Bars, rule: Rule) -> Callable[[], RunResult]:
    """Return a trial of a strategy in Python over open, high, low and close."""
    tape = bar_tape(bars)

    def trial() -> RunResult:
        strategy = Cross.from_params({"fast": rule.fast, "slow": rule.slow})
        found = run_backtest(strategy, tape, CONFIG)
        return RunResult(found.seconds, _trades(found, FIRST_OPEN_S))

    return trial


def bar_tape(bars: Bars) -> BarTape:
    names = np.repeat(np.array(bars.symbols, object), bars.length)
    price, zeros = bars.close.ravel(), np.zeros(bars.total)
    columns = {"open": price, "high": bars.high.ravel(), "low": bars.low.ravel(), "close": price}
    at = np.tile(bars.closes_at.astype(np.float64), len(bars.symbols))
    columns |= {"at": at, "volume": zeros, "value": zeros}
    return BarTape.of_rows([FileRows(Timeframe.M1, names, columns)])


def _trades(found: BacktestResult, first_at: int) -> list[Trade]:
    """Return the trades; `first_at` is the time at which a fill is one of the first bar."""
    return [
        Trade(
            each.symbol,
            round(each.opened_at.timestamp() - first_at) // BAR_S,
            float(each.entry),
            round(each.closed_at.timestamp() - first_at) // BAR_S,
            float(each.exit),
            float(each.quantity),
        )
        for each in found.trades
    ]
