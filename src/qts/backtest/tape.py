"""Tape of a backtest: ticks or bars as columns, read in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError, Tick

CHUNK = 100_000
MAX_BACKWARD_S = 1.0  # a clock may be set back so far; more means an unsorted file

Floats = npt.NDArray[np.float64]


class Chunk(NamedTuple):
    """Columns of events in time order. A bar is one event at its close; a bid of 0 is no bid."""

    symbol: npt.NDArray[np.int32]  # index into the tape's symbols
    price: Floats
    volume: Floats  # traded since the previous event
    bid: Floats
    ask: Floats
    at: Floats  # seconds since 1970


EMPTY_CHUNK = Chunk(np.zeros(0, np.int32), *(np.zeros(0) for _ in range(5)))


class Tape:
    """Iterable of chunks, repeatable; `symbols` grows while the tape is read."""

    def __init__(
        self,
        symbols: Iterable[str],
        chunks: Callable[[Tape], Iterable[Chunk]],
        events: int | None = None,
    ) -> None:
        self.symbols = list(symbols)
        self.events = events  # number of events, if known in advance
        self._chunks = chunks

    def __iter__(self) -> Iterator[Chunk]:
        """Yield validated chunks with non-decreasing times; raise RefusedError for other data."""
        last, count = -math.inf, 0
        for raw in self._chunks(self):
            if not len(raw.at):
                continue
            chunk = self._validate(raw)
            at = np.maximum(np.maximum.accumulate(chunk.at), last)
            backward = at - chunk.at
            worst = int(backward.argmax())
            if not backward[worst] <= MAX_BACKWARD_S:
                raise RefusedError(
                    f"event {count + worst + 1}, {self.symbols[chunk.symbol[worst]]}: its time"
                    f" is {backward[worst]:.1f} s before the previous event; sort the data by time"
                )
            last, count = float(at[-1]), count + len(at)
            yield chunk._replace(at=at) if backward[worst] else chunk

    def _validate(self, chunk: Chunk) -> Chunk:
        """Check the columns, because the compiled scan checks no bounds."""
        columns = [np.ascontiguousarray(column, np.float64) for column in chunk[1:]]
        symbol = np.ascontiguousarray(chunk.symbol, np.int32)
        if any(column.shape != symbol.shape for column in columns) or symbol.ndim != 1:
            raise RefusedError("columns of a chunk have different lengths")
        if symbol.min() < 0 or symbol.max() >= len(self.symbols):
            raise RefusedError(
                f"chunk has symbol index {symbol.max()}; expected 0 to {len(self.symbols) - 1}"
            )
        return Chunk(symbol, *columns)

    @classmethod
    def of_ticks(cls, ticks: Callable[[], Iterable[Tick]], events: int | None = None) -> Tape:
        """Return a tape of ticks; `ticks` is called for every pass."""

        def chunks(tape: Tape) -> Iterator[Chunk]:
            indices = {symbol: index for index, symbol in enumerate(tape.symbols)}
            source = iter(ticks())
            while rows := list(islice(source, CHUNK)):
                for tick in rows:
                    if tick.symbol not in indices:
                        indices[tick.symbol] = len(indices)
                        tape.symbols.append(tick.symbol)
                values = np.array([tick[1:] for tick in rows], np.float64)
                price, volume, bid, ask, at = np.ascontiguousarray(values.T)
                symbol = np.array([indices[tick.symbol] for tick in rows], np.int32)
                yield Chunk(symbol, price, volume, bid, ask, at)

        return cls((), chunks, events)
