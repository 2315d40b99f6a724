"""Suite of a venue's market data: quotes, order books and the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from qts.brokers import Venue, VenueConnection
from qts.domain import Clock, OrderBook
from qts.testing.fixtures import VenueFixtures
from qts.venues import MarketData, Quote, RequestPriority, TickStream

TIMEOUT_S = 20.0  # for the first tick of a stream
NORMAL = RequestPriority.NORMAL


class StreamListener:
    """Collector of what a stream delivers."""

    def __init__(self) -> None:
        self.quotes: list[Quote] = []
        self.books: list[OrderBook] = []
        self._changed = asyncio.Event()

    def on_quote(self, quote: Quote) -> None:
        self.quotes.append(quote)
        self._changed.set()

    def on_book(self, book: OrderBook) -> None:
        self.books.append(book)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class QuoteSuite(VenueFixtures):
    """Requests stay in the limits, and deliver what was chosen."""

    @pytest.fixture
    def data(self, connection: VenueConnection) -> MarketData:
        """The market data of the connection."""
        return connection.data

    @pytest.fixture
    async def symbols(self, venue: Venue[Any], settings: Any, clock: Clock) -> list[str]:
        """Symbols that trade; a subclass may choose them, the most traded first."""
        listed = await venue.instruments(settings, clock).fetch()
        return [each.symbol for each in listed if not each.entry_block][:3]

    @pytest.fixture
    def unknown(self) -> str:
        """A symbol that the venue does not have, in the form that it expects."""
        return "GONE-GONE"

    async def test_a_request_quotes_the_chosen_symbols(
        self, data: MarketData, symbols: list[str]
    ) -> None:
        chosen = symbols[: data.source.per_call]
        found = await data.source.quotes(lambda: chosen, NORMAL)
        assert sorted(each.symbol for each in found) == sorted(chosen)
        assert all(each.price > 0 and each.volume >= 0 for each in found)
        assert all(each.bid <= each.ask for each in found if each.bid and each.ask)
        assert all(each.source for each in found)

    async def test_symbols_are_chosen_once_after_the_request_is_granted(
        self, data: MarketData, symbols: list[str]
    ) -> None:
        before = data.limiter.status().granted
        granted: list[int] = []

        def choose() -> list[str]:
            granted.append(data.limiter.status().granted - before)
            return symbols[:1]

        await data.source.quotes(choose, NORMAL)
        assert granted == [1], "expected one call of choose, after one grant"

    async def test_every_request_is_counted(self, data: MarketData, symbols: list[str]) -> None:
        for count in (1, 2, 3):
            before = data.limiter.status().granted
            await data.source.quotes(lambda: symbols[:1], NORMAL)
            assert data.limiter.status().granted > before, f"request {count} was not granted"
        before = data.limiter.status().granted
        await data.source.order_book(symbols[0], RequestPriority.WATCHED)
        assert data.limiter.status().granted > before

    async def test_an_unknown_symbol_does_not_affect_the_others(
        self, data: MarketData, symbols: list[str], unknown: str
    ) -> None:
        if data.source.per_call > 1:
            found = await data.source.quotes(lambda: [symbols[0], unknown], NORMAL)
            assert [each.symbol for each in found if each.price > 0] == symbols[:1]

    async def test_an_order_book_has_its_best_levels_first(
        self, data: MarketData, symbols: list[str]
    ) -> None:
        book = await data.source.order_book(symbols[0], RequestPriority.WATCHED)
        bids, asks = [each.price for each in book.bids], [each.price for each in book.asks]
        assert book.symbol == symbols[0]
        assert bids == sorted(bids, reverse=True)
        assert asks == sorted(asks)
        assert bids[0] < asks[0]
        assert all(each.quantity > 0 for each in (*book.bids, *book.asks))

    async def test_a_stream_delivers_ticks_of_its_symbols(
        self, data: MarketData, symbols: list[str]
    ) -> None:
        async with self._stream(data) as (stream, listener):
            if stream is None:
                return
            assert stream.capacity == data.limits.streamed
            stream.subscribe(symbols[0])
            assert symbols[0] in stream.symbols
            await listener.until(lambda: bool(listener.quotes))
            assert stream.live
            assert stream.registered_at(symbols[0]) is not None
            assert {each.symbol for each in listener.quotes} == {symbols[0]}
            assert all(each.price > 0 for each in listener.quotes)
            assert stream.silence_s < TIMEOUT_S

    async def test_a_stream_delivers_order_books(
        self, data: MarketData, symbols: list[str]
    ) -> None:
        async with self._stream(data) as (stream, listener):
            if stream is None:
                return
            stream.subscribe(symbols[0])
            stream.set_books(symbols[:1])
            await listener.until(lambda: bool(listener.books))
            assert list(stream.books) == symbols[:1]
            assert {each.symbol for each in listener.books} == {symbols[0]}

    async def test_an_unsubscribed_symbol_leaves_the_stream(
        self, data: MarketData, symbols: list[str]
    ) -> None:
        async with self._stream(data) as (stream, _):
            if stream is None:
                return
            stream.subscribe(symbols[0])
            stream.unsubscribe(symbols[0])
            assert symbols[0] not in stream.symbols

    @asynccontextmanager
    async def _stream(
        self, data: MarketData
    ) -> AsyncIterator[tuple[TickStream | None, StreamListener]]:
        """Run the stream of a venue; None for a venue without one."""
        listener = StreamListener()
        if data.open_stream is None:
            yield None, listener
            return
        stream = data.open_stream(listener.on_quote, listener.on_book)
        task = asyncio.create_task(stream.run())
        try:
            yield stream, listener
        finally:
            task.cancel()
            await asyncio.wait({task})
