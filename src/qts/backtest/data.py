"""Tapes of recorded data, of files of ticks and of a simulated day."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qts.backtest.tape import Chunk, Tape
from qts.domain import KRX_TICKS, RefusedError, Tick
from qts.feed import best_bid_ask, read_records
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig

DAY_S = 23_400  # regular trading session
CHUNK_S = 60
_OPENS = datetime(2026, 11, 16, 9, 0)  # noqa: DTZ001 - the simulator takes Korean time
_EPOCH_S = (
    date(1970, 1, 1).toordinal() * 86_400 + 9 * 3600
)  # the simulator counts seconds in Korean time
_EDGES = np.array([float(edge) for edge, _ in KRX_TICKS])
_STEPS = np.array([float(tick) for _, tick in KRX_TICKS])

Volume = Literal["auto", "day", "tick"]


def simulated_day(seed: int, symbols: int = 2500, seconds: int = DAY_S) -> Tape:
    """Return one bar per symbol and second; deterministic, and read a minute at a time."""
    codes = _market(seed, symbols).universe.codes
    return Tape(codes, lambda _tape: _chunks(seed, symbols, seconds), symbols * seconds)


def _market(seed: int, symbols: int) -> Any:
    config = MarketConfig(seed=seed, symbols=symbols, start=_OPENS)
    return KisSimulator(KisSimulatorConfig(market=config)).market


def _chunks(seed: int, symbols: int, seconds: int) -> Iterator[Chunk]:
    market = _market(seed, symbols)
    while market.phase.kind != "regular":
        for _ in market.advance(market.time + 1):
            pass
    indices = np.arange(symbols, dtype=np.int32)
    for start in range(0, seconds, CHUNK_S):
        rows = min(CHUNK_S, seconds - start)
        price, volume = np.empty((rows, symbols)), np.empty((rows, symbols))
        bid, ask, at = np.empty((rows, symbols)), np.empty((rows, symbols)), np.empty(rows)
        for row in range(rows):
            price[row] = market.price
            volume[row] = np.where(market.traded, market.size, 0)
            step = _STEPS[np.searchsorted(_EDGES, price[row], side="right")]
            bid[row] = np.where(market.at_ask, price[row] - step, price[row])
            ask[row] = np.where(market.at_ask, price[row], price[row] + step)
            at[row] = market.time - _EPOCH_S
            for _ in market.advance(market.time + 1):
                pass
        flat = (price.ravel(), volume.ravel(), bid.ravel(), ask.ravel())
        yield Chunk(np.tile(indices, rows), *flat, np.repeat(at, symbols))


def load_tape(data: str | Path, volume: Volume = "auto") -> Tape:
    """Return the records of a folder or file as a tape, which reads them while it runs.

    The first record is read at once, so that bad data is refused early.
    """
    data = Path(data)
    cumulative = volume == "day" or (volume == "auto" and data.suffix not in (".csv", ".parquet"))
    next(_ticks(data, cumulative), None)
    return Tape.of_ticks(lambda: _ticks(data, cumulative))


def _ticks(data: Path, cumulative: bool) -> Iterator[Tick]:
    """Yield the recorded ticks; a cumulative volume is converted to the volume of each tick."""
    last_volume: dict[str, float] = {}
    for record in read_records(data):
        snapshot = record.snapshot
        inputs, symbol = snapshot.observation.inputs, snapshot.context.symbol
        if not 0 < inputs.price < math.inf:
            continue
        volume = inputs.volume
        if cumulative:
            volume = max(0.0, inputs.volume - last_volume.get(symbol, inputs.volume))
            last_volume[symbol] = inputs.volume
        bid, ask = best_bid_ask(inputs.kis_raw)
        yield Tick(symbol, inputs.price, volume, bid, ask, snapshot.meta.time.timestamp())


def select_tape(
    data: Path | None, seed: int | None, symbols: int, seconds: int, volume: Volume
) -> Tape:
    """Return the tape of `data`, or the simulated day of `seed`; exactly one must be given."""
    if (data is None) == (seed is None):
        raise RefusedError("expected either DATA or --simulated-day SEED")
    if data is not None:
        return load_tape(data, volume)
    return simulated_day(seed or 0, symbols, seconds)
