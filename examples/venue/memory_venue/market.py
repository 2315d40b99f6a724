"""A market whose prices swing around a base: the same at any time for everyone who looks."""

from __future__ import annotations

import math
from decimal import Decimal

from qts.domain import TICK_TABLES, Bar, BookLevel, OrderBook, Timeframe
from qts.venues import Quote

TICK_TABLE = "upbit-krw"  # one of the tables of QTS
TICKS = TICK_TABLES[TICK_TABLE]
LEVELS, SHOWN = 5, 10.0  # of each side of a book, and the quantity on each
SAMPLES = 12  # prices that make a bar
OPENED = 1_735_689_600.0  # 2025-01-01: the first bars
DAY_S = 86_400

BASES = {"MEM-ONE": 10_000, "MEM-TWO": 20_000, "MEM-SIX": 60_000}


class Market:
    """Prices of three symbols."""

    def __init__(self) -> None:
        self.shift = dict.fromkeys(BASES, 1.0)  # by which a test moves a price

    def price(self, symbol: str, at: float) -> Decimal:
        """Return the last price: two waves of a minute and of a day."""
        wave = 0.004 * math.sin(at / 9) + 0.02 * math.sin(at / 14_000)
        return TICKS.round(Decimal(BASES[symbol] * (1 + wave) * self.shift[symbol]))

    def book(self, symbol: str, at: float) -> OrderBook:
        """Return five levels on each side, one tick apart."""
        last = self.price(symbol, at)
        tick = TICKS.size(last)
        bids = [BookLevel(float(last - tick * step), SHOWN) for step in range(LEVELS)]
        asks = [BookLevel(float(last + tick * step), SHOWN) for step in range(1, LEVELS + 1)]
        return OrderBook(symbol, tuple(bids), tuple(asks), at, at)

    def quote(self, symbol: str, at: float, source: str) -> Quote:
        book = self.book(symbol, at)
        volume = at % DAY_S  # one unit a second, from midnight on
        price = float(self.price(symbol, at))
        best = book.bids[0].price, book.asks[0].price
        return Quote(symbol, price, volume, *best, {}, source, at)

    def bar(self, symbol: str, timeframe: Timeframe, closes_at: float) -> Bar:
        """Return the bar that closes then."""
        start = closes_at - timeframe.seconds
        step = timeframe.seconds / SAMPLES
        prices = [float(self.price(symbol, start + step * n)) for n in range(SAMPLES + 1)]
        volume = float(timeframe.seconds)
        value = volume * sum(prices) / len(prices)
        ends = prices[0], max(prices), min(prices), prices[-1]
        return Bar(symbol, timeframe, closes_at, *ends, volume, value)
