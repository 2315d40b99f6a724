"""Peers of the backtest whose packages conflict with ours: each runs in a process and venv apart.

    python -m benchmarks.peers_backtest_child PEER BARS.npz FAST SLOW

It prepares the peer, runs once to compile, writes the versions, and then, for every line it reads,
runs once more and writes one line of JSON: seconds, CPU seconds and trades.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.backtest_rule import BAR_S, CASH, FIRST_OPEN_S, UNITS, Bars, Rule, Trade

Prepare = Callable[[], tuple[Callable[[], Any], Callable[[Any], list[Trade]]]]


def vectorbt(bars: Bars, rule: Rule) -> Prepare:
    """Vectorised over all symbols at once; signals are moved to the next bar, where they fill."""
    pd, kit = importlib.import_module("pandas"), importlib.import_module("vectorbt")
    times = pd.to_datetime(bars.closes_at - BAR_S, unit="s")
    close = pd.DataFrame(bars.close.T, times, list(bars.symbols))

    def run() -> Any:
        fast, slow = (kit.MA.run(close, length, ewm=True).ma.to_numpy() for length in rule)
        side = np.sign(np.nan_to_num(fast - slow))
        above = np.zeros(side.shape, np.bool_)
        above[1:] = (side[1:] > 0) & (side[:-1] < 0)
        below = side < 0
        entries, exits = np.zeros_like(above), np.zeros_like(below)
        entries[1:], exits[1:] = above[:-1], below[:-1]
        book = kit.Portfolio.from_signals(
            close,
            pd.DataFrame(entries, times, close.columns),
            pd.DataFrame(exits, times, close.columns),
            size=UNITS,
            init_cash=CASH,
            freq="1min",
        )
        return book.trades.closed.records

    def trades(records: Any) -> list[Trade]:
        return [
            Trade(
                bars.symbols[each.col],
                each.entry_idx,
                each.entry_price,
                each.exit_idx,
                each.exit_price,
                each.size,
            )
            for each in records.itertuples()
        ]

    return lambda: (run, trades)


_FREQTRADE = """
from freqtrade.strategy import IStrategy

class Cross(IStrategy):
    timeframe, minimal_roi, stoploss, startup_candle_count = "1m", {{}}, -0.99, {slow}

    def populate_indicators(self, frame, metadata):
        close = frame["close"]
        fast = close.ewm(span={fast}, adjust=False).mean()
        return frame.assign(gap=fast - close.ewm(span={slow}, adjust=False).mean())

    def populate_entry_trend(self, frame, metadata):
        crosses = (frame["gap"] > 0) & (frame["gap"].shift(1) < 0)
        return frame.assign(enter_long=crosses.astype(int))

    def populate_exit_trend(self, frame, metadata):
        return frame.assign(exit_long=(frame["gap"] < 0).astype(int))

    def custom_stake_amount(self, pair, current_time, current_rate, *rest, **more):
        return {units} * current_rate
"""


def freqtrade(bars: Bars, rule: Rule) -> Prepare:
    """Its Backtesting without a network: the markets of the exchange are given to ccxt."""
    ccxt = importlib.import_module("ccxt.async_support")
    pairs = {f"{symbol.replace('-', '')}/USDT": symbol for symbol in bars.symbols}
    limits = {name: {"min": 1e-8, "max": 1e9} for name in ("amount", "price", "cost")}
    market = {"quote": "USDT", "type": "spot", "spot": True, "active": True, "info": {}}
    market |= {"limits": limits, "precision": {"amount": 1e-8, "price": 0.01}}

    async def load_markets(self: Any, *_rest: Any, **_more: Any) -> Any:
        names = [(pair, *pair.split("/")) for pair in pairs]
        return self.set_markets(
            [
                {"id": base + quote, "symbol": pair, "base": base} | market
                for pair, base, quote in names
            ]
        )

    ccxt.binance.load_markets = load_markets
    folder = Path(tempfile.mkdtemp(prefix="qts-bench-"))
    settings = _freqtrade_files(folder, bars, rule, list(pairs))
    logging.disable(logging.WARNING)
    engine = importlib.import_module("freqtrade.optimize.backtesting").Backtesting
    configuration = importlib.import_module("freqtrade.configuration").Configuration
    mode = importlib.import_module("freqtrade.enums").RunMode.BACKTEST
    given = {"config": [str(settings)], "user_data_dir": str(folder), "datadir": str(folder)}

    def prepare() -> tuple[Callable[[], Any], Callable[[Any], list[Trade]]]:
        kit = engine(configuration(given, mode).get_config())
        data, span = kit.load_bt_data()

        def run() -> Any:
            kit.backtest_one_strategy(kit.strategylist[0], data, span)
            return kit.all_bt_content["Cross"]["results"]

        return run, trades

    def trades(results: Any) -> list[Trade]:
        return [
            Trade(
                pairs[each.pair],
                _bar(each.open_date),
                each.open_rate,
                _bar(each.close_date),
                each.close_rate,
                each.amount,
            )
            for each in results.itertuples()
        ]

    return prepare


def _freqtrade_files(folder: Path, bars: Bars, rule: Rule, pairs: list[str]) -> Path:
    pd = importlib.import_module("pandas")
    dates = pd.to_datetime(bars.closes_at - BAR_S, unit="s", utc=True)
    for row, pair in enumerate(pairs):
        close = bars.close[row]
        columns = {"date": dates, "open": close, "high": bars.high[row], "low": bars.low[row]}
        frame = pd.DataFrame(columns | {"close": close, "volume": 1000.0})
        frame.to_feather(folder / f"{pair.replace('/', '_')}-1m.feather", compression="lz4")
    text = _FREQTRADE.format(fast=rule.fast, slow=rule.slow, units=UNITS)
    (folder / "cross.py").write_text(text, encoding="utf-8")
    settings = {
        "strategy": "Cross",
        "strategy_path": str(folder),
        "timeframe": "1m",
        "stake_currency": "USDT",
        "stake_amount": UNITS * 10_000,
        "max_open_trades": len(pairs),
        "dry_run": True,
        "dry_run_wallet": CASH,
        "fee": 0.0,
        "exchange": {"name": "binance", "pair_whitelist": pairs},
        "pairlists": [{"method": "StaticPairList"}],
        "entry_pricing": {"price_side": "same"},
        "exit_pricing": {"price_side": "same"},
    }
    file = folder / "config.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    return file


def _bar(date: Any) -> int:
    return int(date.timestamp() - FIRST_OPEN_S) // BAR_S


PEERS = {"vectorbt": vectorbt, "freqtrade": freqtrade}


def _serve(name: str, bars: Bars, rule: Rule) -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a peer may print

    def answer(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    prepare = PEERS[name](bars, rule)
    run, _ = prepare()
    run()
    answer({"version": importlib.metadata.version(name)})
    for _ in sys.stdin:
        run, trades = prepare()
        cpu, began = time.process_time(), time.perf_counter()
        found = run()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        made = [
            [value if isinstance(value, str) else float(value) for value in each]
            for each in trades(found)
        ]
        answer({"seconds": seconds, "cpu_s": cpu, "trades": made})


def main() -> None:
    name, file, fast, slow = sys.argv[1:]
    warnings.simplefilter("ignore")
    with np.load(file) as saved, contextlib.suppress(KeyboardInterrupt):
        bars = Bars(tuple(map(str, saved["symbols"])), saved["close"], saved["high"], saved["low"])
        _serve(name, bars, Rule(int(fast), int(slow)))


if __name__ == "__main__":
    main()
