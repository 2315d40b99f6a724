"""Memory of a backtest over a year of minutes: a process apart, measured when it has ended."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.backtest_ours import CONFIG
from benchmarks.backtest_rule import BAR_S, FIRST_OPEN_S
from qts.backtest import Chunk, Tape, run_backtest
from qts.strategies import MovingAverageSwing

COIN_MINUTES = 525_600  # of a year; coins trade all the time
SESSIONS, SESSION_MINUTES = 245, 390  # of a year of KRX
PARAMS = {"fast": 120, "slow": 600, "margin": 0}  # minutes: some trades a week and symbol
_PART = 1_000  # minutes generated at once
_DAY_S = 86_400
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
# A new process counts the memory of the one that it was forked from: a small one starts it.
_LAUNCHER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


class Measured(NamedTuple):
    bars: int
    seconds: float  # of the backtest, without reading
    peak_mb: float

    @property
    def table_mb(self) -> float:
        """Size of the bars as six columns of 64 bits: time, open, high, low, close, volume."""
        return self.bars * 48 / 1e6


def measure_closes(symbols: int, minutes: int) -> Measured:
    """Run the built-in strategy compiled over closes of coins that are generated on the way."""
    with tempfile.TemporaryDirectory(prefix="qts-bench-") as folder:
        arguments = ["-m", "benchmarks.backtest_year", str(symbols), str(minutes)]
        return _measure([sys.executable, *arguments], Path(folder), symbols * minutes)


def measure_files(symbols: int, sessions: int) -> Measured:
    """Run `qts backtest` over a folder of Parquet files, one for each stock."""
    with tempfile.TemporaryDirectory(prefix="qts-bench-") as name:
        folder = Path(name)
        _write_stocks(folder / "bars", symbols, sessions)
        command = [sys.executable, "-m", "qts", "backtest", "moving_average_swing"]
        params = [word for each in PARAMS.items() for word in ("--param", "{}={}".format(*each))]
        options = [str(folder / "bars"), *params, "--no-stops", "--timeframe", "1m", "--json"]
        return _measure([*command, *options], folder, symbols * sessions * SESSION_MINUTES)


def _measure(command: list[str], folder: Path, bars: int) -> Measured:
    """Run a command that writes its seconds to the JSON file it is given last."""
    file = folder / "result.json"
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command, str(file)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"QTS_HOME": str(folder / "home")},
        check=True,
        text=True,
    )
    seconds = json.loads(file.read_text())["seconds"]
    return Measured(bars, seconds, int(found.stdout) * _RSS_UNIT / 1e6)


def _write_stocks(folder: Path, symbols: int, sessions: int) -> None:
    pandas = importlib.import_module("pandas")
    folder.mkdir()
    days = [day for day in range(2 * sessions) if day % 7 < 5][:sessions]  # begins on a Monday
    # FIRST_OPEN_S is midnight UTC, 09:00 in Seoul.
    opens = _DAY_S * np.repeat(days, SESSION_MINUTES) + np.tile(
        BAR_S * np.arange(SESSION_MINUTES), sessions
    )
    times = pandas.to_datetime(FIRST_OPEN_S + opens, unit="s", utc=True)
    random = np.random.default_rng(7)
    for number in range(symbols):
        steps = random.normal(0, 0.0005, len(opens))
        price = np.round(10_000 * np.exp(np.cumsum(steps)) / 10) * 10
        prices = {"open": price, "high": price + 10, "low": price - 10, "close": price}
        frame = {"time": times, "symbol": f"{number + 1:06}", **prices, "volume": 1_000.0}
        pandas.DataFrame(frame).to_parquet(folder / f"{number + 1:06}.parquet")


def _generated(symbols: int, minutes: int) -> Tape:
    """Return closes of coins, a part at a time."""
    names = [f"KRW-S{number:03}" for number in range(symbols)]
    numbers = np.arange(symbols, dtype=np.int32)

    def chunks(_tape: Tape) -> Iterator[Chunk]:
        random, price = np.random.default_rng(7), np.full(symbols, 10_000.0)
        for first in range(0, minutes, _PART):
            rows = min(_PART, minutes - first)
            walk = np.cumsum(random.normal(0, 0.0005, (rows, symbols)), axis=0)
            prices = np.round(price * np.exp(walk) / 10) * 10
            price = prices[-1]
            at = FIRST_OPEN_S + BAR_S * np.arange(first + 1, first + rows + 1, dtype=np.float64)
            zeros = np.zeros(prices.size)
            every = np.tile(numbers, rows)
            yield Chunk(every, prices.ravel(), zeros, zeros, zeros, np.repeat(at, symbols))

    return Tape(names, chunks, content="a year of generated closes")


def main() -> None:
    symbols, minutes, file = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    strategy = MovingAverageSwing.from_params(PARAMS)
    found = run_backtest(strategy, _generated(symbols, minutes), CONFIG, way="compiled")
    file.write_text(json.dumps({"seconds": found.seconds}))


if __name__ == "__main__":
    main()
