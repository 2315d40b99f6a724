"""History for a backtest: recorded days, files of ticks or a simulated day, as one tape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from qts.domain import RefusedError
from qts.feed import best_bid_ask, read_records
from qts.pipeline import Tape
from qts.strategies import Tick

Volume = Literal["auto", "day", "tick"]


def tape_of(data: Path, volume: Volume = "auto") -> Tape:
    """Read as it is run. The first record is read at once, so that bad data is refused early."""
    runs_up = volume == "day" or (volume == "auto" and data.suffix not in (".csv", ".parquet"))
    next(_ticks(data, runs_up), None)
    return Tape.of_ticks(lambda: _ticks(data, runs_up))


def _ticks(data: Path, runs_up: bool) -> Iterator[Tick]:
    """As they were heard live: a volume that runs up over the day becomes the tick's own."""
    before: dict[str, float] = {}
    for record in read_records(data):
        snapshot = record.snapshot
        inputs, symbol = snapshot.observation.inputs, snapshot.context.symbol
        if not 0 < inputs.price < math.inf:
            continue
        traded = inputs.volume
        if runs_up:
            traded = max(0.0, inputs.volume - before.get(symbol, inputs.volume))
            before[symbol] = inputs.volume
        bid, ask = best_bid_ask(inputs.kis_raw)
        yield Tick(symbol, inputs.price, traded, bid, ask, snapshot.meta.time.timestamp())


def chosen(data: Path | None, seed: int | None, symbols: int, seconds: int, volume: Volume) -> Tape:
    """The one that was asked for."""
    if (data is None) == (seed is None):
        raise RefusedError("name either DATA or --simulated-day SEED, one of the two")
    if data is not None:
        return tape_of(data, volume)
    from qts.cli.simulated_day import simulated_day

    return simulated_day(seed or 0, symbols, seconds)
