"""Prices of the recorded day at the moments that an explanation asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qts.backtest import Chunk, Tape
from qts.domain import Side

_HALF_US = 5e-7  # times have microseconds: one that is equal counts


class RecordedQuote(NamedTuple):
    price: float
    bid: float
    ask: float

    def of(self, side: Side) -> Decimal:
        """Return what an order of this side trades at: the opposite quote, else the last price."""
        quote = self.ask if side is Side.BUY else self.bid
        return Decimal(repr(quote if 0 < quote < float("inf") else self.price))


class Prices(NamedTuple):
    """First and last price of a day, and the quotes at some moments of it."""

    first: float
    last: float
    quotes: Mapping[float, RecordedQuote]


def read_prices(tape: Tape, moments: Mapping[str, Iterable[float]]) -> dict[str, Prices]:
    """Return the prices of these symbols, with the last quote at or before each moment.

    Before the first tick of a symbol, that tick counts. A symbol without a tick has no entry.
    """
    collectors = {symbol: _Collector(times) for symbol, times in moments.items()}
    for chunk in tape:
        order = np.argsort(chunk.symbol, kind="stable")
        symbols = chunk.symbol[order]
        for index in np.unique(symbols).tolist():
            collector = collectors.get(tape.symbols[index])
            if collector is not None:
                begin, end = np.searchsorted(symbols, (index, index + 1))
                collector.add(chunk, order[begin:end])
    return {symbol: each.prices() for symbol, each in collectors.items() if each.first}


class _Collector:
    """Quotes of one symbol."""

    def __init__(self, times: Iterable[float]) -> None:
        self._times = np.array(sorted(set(times)), np.float64)
        self._quotes: dict[float, RecordedQuote] = {}
        self._first_quote: RecordedQuote | None = None
        self.first = self._last = 0.0

    def add(self, chunk: Chunk, rows: npt.NDArray[np.int64]) -> None:
        price = chunk.price[rows]
        rows = rows[(price > 0) & np.isfinite(price)]
        if not len(rows):
            return
        if self._first_quote is None:
            self._first_quote = _quote(chunk, int(rows[0]))
            self.first = self._first_quote.price
        self._last = float(chunk.price[rows[-1]])
        places = np.searchsorted(chunk.at[rows], self._times + _HALF_US, side="right")
        for time, place in zip(self._times.tolist(), places.tolist(), strict=True):
            if place:
                self._quotes[time] = _quote(chunk, int(rows[place - 1]))

    def prices(self) -> Prices:
        if self._first_quote is not None:
            for time in self._times.tolist():
                self._quotes.setdefault(time, self._first_quote)
        return Prices(self.first, self._last, self._quotes)


def _quote(chunk: Chunk, row: int) -> RecordedQuote:
    return RecordedQuote(*(float(column[row]) for column in (chunk.price, chunk.bid, chunk.ask)))
