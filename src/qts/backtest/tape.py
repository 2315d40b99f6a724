"""History to run a strategy over: ticks or bars as columns, a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError, Tick

CHUNK = 100_000
STEPS_BACK_S = 1.0  # a wall clock may be set back so far; more is a file out of order

Floats = npt.NDArray[np.float64]


class Chunk(NamedTuple):
    """Events in the order of time. A bar is one event, at its close; 0 is no quote."""

    symbol: npt.NDArray[np.int32]  # its place among the symbols
    price: Floats
    volume: Floats  # traded since the event before
    bid: Floats
    ask: Floats
    at: Floats  # seconds since 1970


NOTHING = Chunk(np.zeros(0, np.int32), *(np.zeros(0) for _ in range(5)))


class Tape:
    """Iterate as often as you like; symbols are known as far as the tape has been read."""

    def __init__(
        self,
        symbols: Iterable[str],
        chunks: Callable[[Tape], Iterable[Chunk]],
        events: int | None = None,
    ) -> None:
        self.symbols = list(symbols)
        self.events = events  # how many there are, where that is known before
        self._chunks = chunks

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks that hold together and whose times never go back; Refused where they do not."""
        last, number = -math.inf, 0
        for given in self._chunks(self):
            if not len(given.at):
                continue
            chunk = self._checked(given)
            at = np.maximum(np.maximum.accumulate(chunk.at), last)
            back = at - chunk.at
            worst = int(back.argmax())
            if not back[worst] <= STEPS_BACK_S:
                raise RefusedError(
                    f"event {number + worst + 1}, {self.symbols[chunk.symbol[worst]]}: its time"
                    f" is {back[worst]:.1f} s before the event before it; sort the data by time"
                )
            last, number = float(at[-1]), number + len(at)
            yield chunk._replace(at=at) if back[worst] else chunk

    def _checked(self, chunk: Chunk) -> Chunk:
        """A compiled walk looks at no bounds: what it walks over has to be right before."""
        columns = [np.ascontiguousarray(column, np.float64) for column in chunk[1:]]
        symbol = np.ascontiguousarray(chunk.symbol, np.int32)
        if any(column.shape != symbol.shape for column in columns) or symbol.ndim != 1:
            raise RefusedError("the columns of a chunk are of different lengths")
        if symbol.min() < 0 or symbol.max() >= len(self.symbols):
            raise RefusedError(
                f"a chunk names symbol {symbol.max()}; the tape has {len(self.symbols)}, from 0"
            )
        return Chunk(symbol, *columns)

    @classmethod
    def of_ticks(cls, ticks: Callable[[], Iterable[Tick]], events: int | None = None) -> Tape:
        """Of ticks, read anew for every pass."""

        def chunks(tape: Tape) -> Iterator[Chunk]:
            places = {symbol: place for place, symbol in enumerate(tape.symbols)}
            source = iter(ticks())
            while rows := list(islice(source, CHUNK)):
                for tick in rows:
                    if tick.symbol not in places:
                        places[tick.symbol] = len(places)
                        tape.symbols.append(tick.symbol)
                numbers = np.array([tick[1:] for tick in rows], np.float64)
                price, volume, bid, ask, at = np.ascontiguousarray(numbers.T)
                symbol = np.array([places[tick.symbol] for tick in rows], np.int32)
                yield Chunk(symbol, price, volume, bid, ask, at)

        return cls((), chunks, events)
