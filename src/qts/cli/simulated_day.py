"""A day of the simulated stock market as a tape: a bar of every symbol for every second."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import numpy as np

from qts.domain import KRX_TICKS
from qts.pipeline import Chunk, Tape
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig

DAY_S = 23_400  # the regular session
CHUNK_S = 60
_OPENS = datetime(2026, 11, 16, 9, 0)  # noqa: DTZ001 - Korean time, as the simulator wants it
_EPOCH_S = date(1970, 1, 1).toordinal() * 86_400 + 9 * 3600  # the market counts Korean seconds
_EDGES = np.array([float(edge) for edge, _ in KRX_TICKS])
_STEPS = np.array([float(tick) for _, tick in KRX_TICKS])


def simulated_day(seed: int, symbols: int = 2500, seconds: int = DAY_S) -> Tape:
    """The same for the same seed. A minute of it is in memory at a time."""
    names = _market(seed, symbols).universe.codes
    return Tape(names, lambda _tape: _chunks(seed, symbols, seconds), symbols * seconds)


def _market(seed: int, symbols: int) -> Any:
    config = MarketConfig(seed=seed, symbols=symbols, start=_OPENS)
    return KisSimulator(KisSimulatorConfig(market=config)).market


def _chunks(seed: int, symbols: int, seconds: int) -> Iterator[Chunk]:
    market = _market(seed, symbols)
    while market.phase.kind != "regular":
        for _ in market.advance(market.time + 1):
            pass
    every = np.arange(symbols, dtype=np.int32)
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
        yield Chunk(np.tile(every, rows), *flat, np.repeat(at, symbols))
