"""Memory of tapes: files are read part by part, and what is computed takes no second table."""

from __future__ import annotations

import importlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qts.backtest import BarTape, Tape
from qts.backtest.run import hold_bars
from tests.backtest.bars import MONDAY

# They have no types of their own.
pa: Any = importlib.import_module("pyarrow")
pq: Any = importlib.import_module("pyarrow.parquet")

SYMBOLS, MINUTES = 20, 25_000
ROWS = SYMBOLS * MINUTES
BAR_BYTES, TICK_BYTES = 4 + 7 * 8, 4 + 5 * 8  # number of the symbol and columns of 64 bits
# From 2.5 on numpy traces both blocks while one grows; the memory of the process is the same.
TRACES_BOTH = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 5)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return folders of bars and of ticks with a file for each symbol."""
    folder = tmp_path_factory.mktemp("files")
    at = pa.array((1e6 * (MONDAY + 60.0 * np.arange(MINUTES))).astype(np.int64))
    time = at.cast(pa.timestamp("us", "UTC"))
    price = pa.array(np.random.default_rng(5).integers(90, 110, MINUTES).astype(np.float64))
    for kind, names in (("bars", ("open", "high", "low", "close")), ("ticks", ("price",))):
        (folder / kind).mkdir()
        for number in range(SYMBOLS):
            symbol = f"{number:06}"
            columns = {"time": time, "symbol": pa.array([symbol] * MINUTES)}
            columns |= dict.fromkeys((*names, "volume"), price)
            pq.write_table(pa.table(columns), folder / kind / f"{symbol}.parquet")
    return folder


def peak_of(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of a call and the most memory that it took in addition."""
    tracemalloc.start()
    try:
        found = call()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read(folder: Path) -> Any:
    return Tape.read(folder, timeframe="1m")


def test_reading_bars_takes_little_more_than_their_columns(files: Path) -> None:
    read(files / "bars")  # imports
    tape, peak = peak_of(lambda: read(files / "bars"))
    assert isinstance(tape, BarTape)
    assert len(tape.rows) == ROWS
    assert tape.rows.itemsize == BAR_BYTES
    assert peak < (2.3 if TRACES_BOTH else 1.6) * ROWS * BAR_BYTES


def test_reading_ticks_takes_little_more_than_their_columns(files: Path) -> None:
    tape, peak = peak_of(lambda: read(files / "ticks"))
    assert tape.events == ROWS
    assert peak < (2.3 if TRACES_BOTH else 1.7) * ROWS * TICK_BYTES


def test_playing_bars_takes_no_second_table(files: Path) -> None:
    tape = read(files / "bars")

    def play() -> None:
        assert sum(len(events.at) for events in tape) == 2 * ROWS
        assert tape.digest
        assert tape.seen == set(range(SYMBOLS))

    _, peak = peak_of(play)
    assert peak < 0.4 * ROWS * BAR_BYTES
    held, peak = peak_of(lambda: hold_bars(tape, 1e6))
    assert len(held) == MINUTES + 1
    assert peak < 0.3 * ROWS * BAR_BYTES


def test_a_stretch_of_time_is_not_copied(files: Path) -> None:
    tape = read(files / "bars")
    later, peak = peak_of(lambda: tape.select(None, MONDAY + 60 * 1000, MONDAY + 60 * 20_000))
    assert np.shares_memory(later.rows, tape.rows)
    assert (len(later.before), len(later.rows)) == (1000 * SYMBOLS, 19_000 * SYMBOLS)
    assert peak < 0.3 * ROWS * BAR_BYTES


def test_ticks_are_played_in_chunks(files: Path) -> None:
    chunks = list(read(files / "ticks"))
    assert [len(chunk.at) for chunk in chunks] == [100_000] * 5
    assert (
        np.concatenate([chunk.symbol for chunk in chunks]).tolist() == [*range(SYMBOLS)] * MINUTES
    )
