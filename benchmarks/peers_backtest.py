"""Peers of the backtest: one moving-average rule, written for the API of each.

backtesting.py and nautilus_trader are in this environment; vectorbt and freqtrade want other
versions of our packages, and each runs as a process in an environment beside this one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.backtest_rule import (
    BAR_S,
    CASH,
    FIRST_OPEN_S,
    UNITS,
    Bars,
    Floats,
    Rule,
    RunResult,
    Trade,
)

Trial = Callable[[], RunResult]

PEERS = ("backtesting.py", "nautilus_trader", "vectorbt", "freqtrade")
_SECOND_NS = 1_000_000_000
_BASE = Path(sys.prefix)
# .venv-peers beside .venv and .venv-bench, as make bench creates them
PEERS_VENV = _BASE.with_name(_BASE.name.removesuffix("-bench") + "-peers")


@contextmanager
def peers(bars: Bars, rule: Rule, names: tuple[str, ...] = PEERS) -> Iterator[dict[str, Trial]]:
    """Yield a trial of each installed peer; those in another process end with the context."""
    found: dict[str, Trial] = {}
    with ExitStack() as children:
        for name in filter(is_installed, names):
            if name in _HERE:
                found[name] = _HERE[name](bars, rule)
            else:
                found[name] = children.enter_context(_child(name, bars, rule))
        yield found


def is_installed(name: str) -> bool:
    if name in _HERE:
        return importlib.util.find_spec(name.removesuffix(".py")) is not None
    return (PEERS_VENV / ".packages").exists()


@contextmanager
def _child(name: str, bars: Bars, rule: Rule) -> Iterator[Trial]:
    """Start a peer's process; it is idle between the trials, which time the backtest alone."""
    with tempfile.TemporaryDirectory(prefix="qts-bench-") as folder:
        file = Path(folder) / "bars.npz"
        np.savez(
            file,
            symbols=np.array(bars.symbols),
            close=bars.close,
            high=bars.high,
            low=bars.low,
        )
        numbers = [str(number) for number in rule]
        module = ["-m", "benchmarks.peers_backtest_child", name, str(file), *numbers]
        process = subprocess.Popen(
            [PEERS_VENV / "bin/python", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            env=os.environ | {"TMPDIR": folder},
            text=True,
        )
        try:
            _answer(name, process)
            yield lambda: _child_trial(name, process)
        finally:
            process.kill()
            process.communicate()


def _child_trial(name: str, process: subprocess.Popen[str]) -> RunResult:
    if process.stdin is None:
        raise AssertionError("the process was started without a pipe")
    print("run", file=process.stdin, flush=True)
    found = _answer(name, process)
    trades = [
        Trade(symbol, int(entry_bar), entry, int(exit_bar), exit_, units)
        for symbol, entry_bar, entry, exit_bar, exit_, units in found["trades"]
    ]
    return RunResult(found["seconds"], trades, found["cpu_s"])


def _answer(name: str, process: subprocess.Popen[str]) -> Any:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"{name} ended with exit code {process.wait()}; see its output above")
    return json.loads(line)


def ema(values: Floats, length: int) -> Floats:
    found = np.empty_like(values)
    state, weight = values[0], 2.0 / (length + 1.0)
    for i, value in enumerate(values.tolist()):
        state += (value - state) * weight
        found[i] = state
    return found


def backtesting_py(bars: Bars, rule: Rule) -> Trial:
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
                self.buy(size=UNITS)

    times = pd.to_datetime(bars.closes_at - BAR_S, unit="s")
    frames = []
    for close, high, low in zip(bars.close, bars.high, bars.low, strict=True):
        columns = {"Open": close, "High": high, "Low": low, "Close": close, "Volume": 1.0}
        frames.append(pd.DataFrame(columns, index=times))

    def trial() -> RunResult:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = [kit.Backtest(frame, Cross, cash=CASH).run() for frame in frames]
        seconds = time.perf_counter() - began
        trades = [
            Trade(symbol, row.EntryBar, row.EntryPrice, row.ExitBar, row.ExitPrice, row.Size)
            for symbol, result in zip(bars.symbols, results, strict=True)
            for row in result["_trades"].itertuples()
        ]
        return RunResult(seconds, trades)

    return trial


def nautilus(bars: Bars, rule: Rule) -> Trial:
    """Return a trial of nautilus_trader's event-driven engine; building the bars is not timed.

    It fills on the close that an order was decided on, unless orders take time to arrive: here a
    bar. The bars of one minute are a nanosecond apart, so that an order meets its symbol's.
    """
    model, engines = _nautilus("model.data"), _nautilus("backtest.engine")
    enums, settings = _nautilus("model.enums"), _nautilus("config")
    provider = _nautilus("test_kit.providers").TestInstrumentProvider
    latency = _nautilus("backtest.models").LatencyModel
    usd = _nautilus("model.currencies").USD
    minute = model.BarSpecification(1, enums.BarAggregation.MINUTE, enums.PriceType.LAST)
    instruments, types, data = [], {}, []
    times = [at * _SECOND_NS for at in bars.closes_at.tolist()]
    rows = zip(bars.symbols, bars.close, bars.high, bars.low, strict=True)
    for number, (symbol, *columns) in enumerate(rows):
        instrument = provider.equity(symbol=symbol.replace("-", ""), venue="SIM")
        kind = model.BarType(instrument.id, minute)
        instruments.append(instrument)
        types[kind] = symbol
        size, price = instrument.make_qty(1_000_000), instrument.make_price
        for at, *prices in zip(times, *(column.tolist() for column in columns), strict=True):
            close, high, low = map(price, prices)
            after = at + number
            data.append(model.Bar(kind, close, high, low, close, size, after, after))
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
            latency_model=latency(base_latency_nanos=BAR_S * _SECOND_NS),
        )
        for instrument in instruments:
            engine.add_instrument(instrument)
        strategy = cross(list(types), rule)
        engine.add_strategy(strategy)
        engine.add_data(data)
        began = time.perf_counter()
        engine.run()
        seconds = time.perf_counter() - began
        trades = _nautilus_trades(strategy.fills, types)
        engine.dispose()
        return RunResult(seconds, trades)

    return trial


def _nautilus(module: str) -> Any:
    return importlib.import_module(f"nautilus_trader.{module}")


def _nautilus_trades(fills: list[Any], types: dict[Any, str]) -> list[Trade]:
    """Pair the fills of each symbol: an entry and its exit."""
    symbols = {kind.instrument_id: symbol for kind, symbol in types.items()}
    open_: dict[Any, tuple[int, float, float]] = {}
    found = []
    for fill in fills:
        bar = (fill.ts_event // _SECOND_NS - FIRST_OPEN_S) // BAR_S - 1
        price, units = float(fill.last_px), float(fill.last_qty)
        entry = open_.pop(fill.instrument_id, None)
        if entry is None:
            open_[fill.instrument_id] = (bar, price, units)
        else:
            found.append(Trade(symbols[fill.instrument_id], *entry[:2], bar, price, units))
    return found


def _nautilus_cross() -> Any:
    average_of: Any = _nautilus("indicators").ExponentialMovingAverage
    sides: Any = _nautilus("model.enums").OrderSide
    base: Any = _nautilus("trading.strategy").Strategy

    class Cross(base):  # type: ignore[misc] # optional package
        def __init__(self, types: list[Any], rule: Rule) -> None:
            super().__init__()
            self.types, self.rule = types, rule
            self.fills: list[Any] = []
            self.held: set[Any] = set()
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
            if kind in self.held:
                if side < 0:
                    self.order(kind, sides.SELL)
                    self.held.remove(kind)
            elif before < 0 < side:
                self.order(kind, sides.BUY)
                self.held.add(kind)

        def order(self, kind: Any, side: Any) -> None:
            instrument = self.cache.instrument(kind.instrument_id)
            size = instrument.make_qty(UNITS)
            self.submit_order(self.order_factory.market(kind.instrument_id, side, size))

        def on_order_filled(self, fill: Any) -> None:
            self.fills.append(fill)

    return Cross


_HERE = {"backtesting.py": backtesting_py, "nautilus_trader": nautilus}
