"""Ticks of quotes and of records: the volume of the day becomes the volume of each tick."""

from __future__ import annotations

import math
from collections.abc import Mapping

from qts.domain import OrderBook, Tick
from qts.feed.observer import PatternRecord
from qts.venues import Quote

# Best bid and ask in the venue's row, for records of schema 1, which hold them nowhere else.
_BID = ("inter2_bidp", "bidp1", "BIDP1", "bid_price")
_ASK = ("inter2_askp", "askp1", "ASKP1", "ask_price")


class TickBuilder:
    """Builder of the ticks of one feed or record, in their order."""

    def __init__(self) -> None:
        self._day_volumes: dict[str, float] = {}
        self._books: dict[str, OrderBook] = {}

    def from_quote(self, quote: Quote, at: float) -> Tick | None:
        """Return the tick of a quote received at `at`; None for a halted or untraded symbol."""
        symbol, price = quote.symbol, quote.price
        if not 0 < price < math.inf:
            return None
        volume = self._increment(symbol, quote.volume)
        bid, ask = quote.bid, quote.ask
        if not (bid and ask):
            best_bid, best_ask = self._book_quotes(symbol, price, at)
            bid, ask = bid or best_bid, ask or best_ask
        return Tick(symbol, price, volume, bid, ask, at, quote.at)

    def from_record(self, record: PatternRecord, *, cumulative: bool = True) -> Tick | None:
        """Return the tick as it was received; `cumulative` says that volumes are the day's."""
        snapshot = record.snapshot
        inputs, symbol = snapshot.observation.inputs, snapshot.context.symbol
        price, bid, ask = inputs.price, inputs.bid, inputs.ask
        if not 0 < price < math.inf:
            return None
        if record.schema == 1:
            bid, ask = _first(inputs.kis_raw, _BID), _first(inputs.kis_raw, _ASK)
        volume = self._increment(symbol, inputs.volume) if cumulative else inputs.volume
        at = snapshot.meta.time.timestamp()
        return Tick(symbol, price, volume, bid or price, ask or price, at, inputs.venue_at)

    def take_book(self, book: OrderBook) -> None:
        """Quote the symbol's ticks by this book, where the venue sends none with them."""
        self._books[book.symbol] = book

    def _book_quotes(self, symbol: str, price: float, at: float) -> tuple[float, float]:
        """Return bid and ask of a fresh book around the price, else the price itself."""
        book = self._books.get(symbol)
        if book is None or not book.is_fresh(at):
            return price, price
        bid, ask = (side[0].price if side else price for side in (book.bids, book.asks))
        return min(bid, price), max(ask, price)

    def _increment(self, symbol: str, day_volume: float) -> float:
        volume = max(0.0, day_volume - self._day_volumes.get(symbol, day_volume))
        self._day_volumes[symbol] = day_volume
        return volume


def _first(raw: Mapping[str, object], names: tuple[str, ...]) -> float:
    for name in names:
        if name in raw:
            try:
                return max(0.0, float(str(raw[name])))
            except ValueError:
                return 0.0
    return 0.0
