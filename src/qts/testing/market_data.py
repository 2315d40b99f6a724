"""Suites of a venue's market data: quotes, order books, the stream and past bars."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from qts.brokers import Venue, VenueConnection
from qts.domain import Bar, Clock, OrderBook, Timeframe
from qts.testing.venue import VenueFixtures
from qts.venues import (
    BUILT_IN,
    BarHistory,
    Calendar,
    HistoryRules,
    MarketData,
    Quote,
    RequestPriority,
    TickStream,
    market_of_venue,
)

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


BARS = 450  # several pages at most venues
OFFERED = (Timeframe.M1, Timeframe.D1)


async def read(
    history: BarHistory, symbol: str, timeframe: Timeframe, start: float, end: float
) -> tuple[list[Bar], int]:
    """Return the bars of (start, end], read page by page as a download does, and the pages."""
    found: list[Bar] = []
    pages = 0
    while end > start:
        page = await history.page(symbol, timeframe, start, end)
        pages += 1
        assert start <= page.start < end, "a page begins in the range and before its end"
        assert all(page.start < bar.at <= end for bar in page.bars), "bars outside of their page"
        found = page.bars + found
        end = page.start
    return found, pages


@pytest.mark.parametrize("timeframe", OFFERED)
class HistorySuite(VenueFixtures):
    """Bars of one minute and one day."""

    @pytest.fixture
    def rules(self, venue: Venue[Any], settings: Any, calendar: Calendar | None) -> HistoryRules:
        """What the venue announces about its past bars."""
        return venue.history(settings, calendar)

    @pytest.fixture
    def history(self, connection: VenueConnection) -> BarHistory:
        """The past bars of the connection."""
        return connection.history

    @pytest.fixture
    def symbol(self, venue: Venue[Any]) -> str:
        """A symbol that has traded all the time; a subclass may choose another."""
        return venue.symbol_form.example

    @pytest.fixture
    def period(
        self, rules: HistoryRules, timeframe: Timeframe, clock: Clock
    ) -> tuple[float, float]:
        """Start and end of the latest `BARS` bars, or of all that are offered."""
        now = clock.now().timestamp()
        end = rules.latest(timeframe, now)
        earliest = rules.earliest(timeframe, now).at
        return max(earliest, rules.start(timeframe, BARS, end)), end

    def test_it_announces_what_it_offers(
        self, venue: Venue[Any], rules: HistoryRules, clock: Clock, timeframe: Timeframe
    ) -> None:
        now = clock.now().timestamp()
        earliest, latest = rules.earliest(timeframe, now), rules.latest(timeframe, now)
        is_ours = venue.name in BUILT_IN
        assert rules.market == (market_of_venue(venue.name) if is_ours else venue.name)
        assert rules.per_second > 0
        assert earliest.at < latest <= now
        assert earliest.reason
        assert rules.start(timeframe, 10, latest) <= rules.start(timeframe, 5, latest) < latest
        assert rules.requests(timeframe, latest - 86_400, latest) >= 1

    async def test_it_lists_a_symbol_that_has_bars(
        self, history: BarHistory, symbol: str, timeframe: Timeframe
    ) -> None:
        listed = await history.symbols()
        assert listed is None or symbol in listed, timeframe

    async def test_pages_hold_every_bar_once_in_order_of_time(
        self,
        rules: HistoryRules,
        history: BarHistory,
        symbol: str,
        timeframe: Timeframe,
        period: tuple[float, float],
    ) -> None:
        found, pages = await read(history, symbol, timeframe, *period)
        at = [bar.at for bar in found]
        assert len(found) >= BARS // 2
        assert at == sorted(set(at))
        assert pages <= rules.requests(timeframe, *period), "more requests than announced"
        assert {(bar.symbol, bar.timeframe) for bar in found} == {(symbol, timeframe)}
        if timeframe is Timeframe.M1:
            assert all(moment % timeframe.seconds == 0 for moment in at)

    async def test_a_range_read_in_two_parts_is_the_same(
        self,
        history: BarHistory,
        symbol: str,
        timeframe: Timeframe,
        period: tuple[float, float],
    ) -> None:
        whole, _ = await read(history, symbol, timeframe, *period)
        middle = whole[len(whole) // 2].at
        older, _ = await read(history, symbol, timeframe, period[0], middle)
        newer, _ = await read(history, symbol, timeframe, middle, period[1])
        assert older + newer == whole

    async def test_prices_of_a_bar_fit_together(
        self,
        history: BarHistory,
        symbol: str,
        timeframe: Timeframe,
        period: tuple[float, float],
    ) -> None:
        for bar in (await read(history, symbol, timeframe, *period))[0]:
            assert 0 < bar.low <= min(bar.open, bar.close), bar
            assert max(bar.open, bar.close) <= bar.high, bar
            assert bar.volume > 0, bar

    async def test_no_bar_is_still_open(
        self,
        rules: HistoryRules,
        history: BarHistory,
        symbol: str,
        clock: Clock,
        timeframe: Timeframe,
    ) -> None:
        now = clock.now().timestamp()
        end = rules.latest(timeframe, now)
        page = await history.page(symbol, timeframe, rules.start(timeframe, 5, end), now)
        assert all(bar.at <= now for bar in page.bars)
