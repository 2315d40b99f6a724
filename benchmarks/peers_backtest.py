"""Peers of the backtest: one moving-average rule, written for the API of each.

The rule is that of MovingAverageSwing without a margin: enter when the fast exponential average
crosses above the slow one, exit when it is below it; 500,000 won an entry, no costs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Bars = dict[str, npt.NDArray[np.float64]]  # closes by symbol, one a second

ORDER = 500_000
CASH = 1_000_000_000


class RunResult(NamedTuple):
    seconds: float
    trades: int


class Rule(NamedTuple):
    fast: int
    slow: int


def ema(values: npt.NDArray[np.float64], length: int) -> npt.NDArray[np.float64]:
    found = np.empty_like(values)
    state, weight = values[0], 2.0 / (length + 1.0)
    for i, value in enumerate(values.tolist()):
        state += (value - state) * weight
        found[i] = state
    return found


def peers() -> dict[str, Callable[[Bars, Rule], Callable[[], RunResult]]]:
    """Return the installed peers; each turns bars and a rule into a trial."""
    known = {"backtesting": ("backtesting.py", backtesting_py)}
    known["nautilus_trader"] = ("nautilus_trader", nautilus)
    return dict(found for module, found in known.items() if importlib.util.find_spec(module))


def backtesting_py(bars: Bars, rule: Rule) -> Callable[[], RunResult]:
    """Return a trial of backtesting.py; it has one symbol per run, so several run in turn."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # its progress bar
    pd = importlib.import_module("pandas")
    kit = importlib.import_module("backtesting")
    base: Any = kit.Strategy

    class Cross(base):  # type: ignore[misc] # optional package
        def init(self) -> None:
            self.fast = self.I(ema, self.data.Close, rule.fast)
            self.slow = self.I(ema, self.data.Close, rule.slow)
            self.side = 0

        def next(self) -> None:
            if len(self.data) < rule.slow:
                return
            fast, slow, before = self.fast[-1], self.slow[-1], self.side
            self.side = 1 if fast > slow else -1 if fast < slow else before
            if self.position:
                if self.side < 0:
                    self.position.close()
            elif before < 0 < self.side:
                self.buy(size=int(ORDER // self.data.Close[-1]))

    frames = [
        pd.DataFrame(
            {"Open": closes, "High": closes, "Low": closes, "Close": closes, "Volume": 1.0},
            index=pd.date_range("2026-11-16", periods=len(closes), freq="s"),
        )
        for closes in bars.values()
    ]

    def trial() -> RunResult:
        began, trades = time.perf_counter(), 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for frame in frames:
                trades += int(kit.Backtest(frame, Cross, cash=CASH).run()["# Trades"])
        return RunResult(time.perf_counter() - began, trades)

    return trial


def nautilus(bars: Bars, rule: Rule) -> Callable[[], RunResult]:
    """Return a trial of nautilus_trader's event-driven engine; building the bars is not timed."""
    model, engines = _nautilus("model.data"), _nautilus("backtest.engine")
    enums, settings = _nautilus("model.enums"), _nautilus("config")
    provider = _nautilus("test_kit.providers").TestInstrumentProvider
    usd = _nautilus("model.currencies").USD
    second = model.BarSpecification(1, enums.BarAggregation.SECOND, enums.PriceType.LAST)
    instruments, types, data = [], [], []
    for symbol, closes in bars.items():
        instrument = provider.equity(symbol=symbol, venue="SIM")
        kind = model.BarType(instrument.id, second)
        instruments.append(instrument)
        types.append(kind)
        size = instrument.make_qty(1_000_000)
        for i, close in enumerate(closes.tolist()):
            price, at = instrument.make_price(close), (i + 1) * 1_000_000_000
            data.append(model.Bar(kind, price, price, price, price, size, at, at))
    data.sort(key=lambda bar: bar.ts_init)
    cross = _nautilus_cross()

    def trial() -> RunResult:
        engine = engines.BacktestEngine(
            engines.BacktestEngineConfig(
                logging=settings.LoggingConfig(bypass_logging=True),
                risk_engine=settings.RiskEngineConfig(bypass=True),
                run_analysis=False,
            )
        )
        engine.add_venue(
            _nautilus("model.identifiers").Venue("SIM"),
            enums.OmsType.NETTING,
            enums.AccountType.MARGIN,
            [_nautilus("model.objects").Money(CASH, usd)],
            default_leverage=Decimal(1),
        )
        for instrument in instruments:
            engine.add_instrument(instrument)
        strategy = cross(types, rule)
        engine.add_strategy(strategy)
        engine.add_data(data, sort=False)
        began = time.perf_counter()
        engine.run()
        seconds = time.perf_counter() - began
        ran = RunResult(seconds, strategy.exits)
        engine.dispose()
        return ran

    return trial


def _nautilus(module: str) -> Any:
    return importlib.import_module(f"nautilus_trader.{module}")


def _nautilus_cross() -> Any:
    average_of: Any = _nautilus("indicators").ExponentialMovingAverage
    sides: Any = _nautilus("model.enums").OrderSide
    base: Any = _nautilus("trading.strategy").Strategy

    class Cross(base):  # type: ignore[misc] # optional package
        def __init__(self, types: list[Any], rule: Rule) -> None:
            super().__init__()
            self.types, self.rule, self.exits = types, rule, 0
            self.held: dict[Any, Any] = {}
            self.side: dict[Any, int] = {}
            self.averages: dict[Any, tuple[Any, Any]] = {}

        def on_start(self) -> None:
            for kind in self.types:
                pair = (average_of(self.rule.fast), average_of(self.rule.slow))
                self.averages[kind] = pair
                self.side[kind] = 0
                for average in pair:
                    self.register_indicator_for_bars(kind, average)
                self.subscribe_bars(kind)

        def on_bar(self, bar: Any) -> None:
            kind = bar.bar_type
            fast, slow = self.averages[kind]
            if slow.count < self.rule.slow:
                return
            before = self.side[kind]
            side = 1 if fast.value > slow.value else -1 if fast.value < slow.value else before
            self.side[kind] = side
            held = self.held.get(kind)
            if held is not None:
                if side < 0:
                    self.order(kind, sides.SELL, held)
                    del self.held[kind]
                    self.exits += 1
            elif before < 0 < side:
                instrument = self.cache.instrument(kind.instrument_id)
                size = instrument.make_qty(int(ORDER // float(bar.close)))
                self.order(kind, sides.BUY, size)
                self.held[kind] = size

        def order(self, kind: Any, side: Any, size: Any) -> None:
            order = self.order_factory.market(kind.instrument_id, side, size)
            self.submit_order(order)

    return Cross
