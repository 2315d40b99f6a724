"""Order books: streamed within the registrations, polled for open orders, paid by paper fills."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest

from qts.brokers import FeesConfig, PaperConfig, PaperMatchingEngine
from qts.domain import (
    BookLevel,
    ManualClock,
    OrderBook,
    OrderRequest,
    OrderType,
    Side,
    SystemClock,
    Tick,
)
from qts.feed import Feed, FeedCallbacks, FeedConfig
from qts.feed.requests import BookPoller, book_interval_s
from qts.simulators import (
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from qts.venues import (
    KisConfig,
    QuoteSource,
    RequestPriority,
    UpbitClient,
    UpbitConfig,
    upbit_market_data,
)
from tests.feed.feeds import open_feed, plan_of
from tests.feed.market import MONDAY_OPEN, Ticks, poller_on, running, write_symbols
from tests.feed.test_feed import _until
from tests.instruments import LISTED
from tests.venues.kis import config_for

KIS_MARKET = MarketConfig(symbols=60, suspended=0, surges_per_hour=0, speed=5)


async def test_books_of_held_symbols_are_streamed_by_kis(tmp_path: Path) -> None:
    books: list[OrderBook] = []
    async with KisSimulator(KisSimulatorConfig(market=KIS_MARKET)) as simulator:
        held = list(simulator.market.universe.codes[:25])
        symbols = write_symbols(tmp_path / "symbols.txt", held)
        config = FeedConfig(symbols=symbols, interval_s=60.0, always_open=True)
        callbacks = FeedCallbacks(on_book=books.append)
        kis, clock = config_for(simulator.url), SystemClock()
        async with open_feed(kis, config, tmp_path / "home", clock, callbacks=callbacks) as feed:
            feed.watch(held)
            task = asyncio.create_task(feed.run())
            await _until(lambda: len({book.symbol for book in books}) == 15, task)
            (registrations,) = simulator.stats()["stream"]["registrations"].values()
            assert registrations == 40  # 25 of trades, 15 of books, one is left for notices
            await _until(lambda: "books      15 streamed" in feed.plan.render(), task)
            task.cancel()
            await asyncio.wait({task})
    assert {book.symbol for book in books} == set(held[:15])
    for book in books:
        assert len(book.asks) == len(book.bids) == 10
        assert book.bids[0].price < book.asks[0].price
        assert all(level.quantity > 0 for level in (*book.bids, *book.asks))


async def test_books_of_open_orders_are_polled_where_no_stream_delivers_them() -> None:
    async with poller_on(5, config=FeedConfig(always_open=True)) as rig, running(rig):
        stream = Ticks(rig.clock, capacity=3)
        rig.poller.attach_stream(stream)
        rig.poller.watch(["000001", "000002"], {"000001", "000002"})
        await rig.clock.advance(4.0)
        assert stream.books == ("000001",)  # two registrations are for ticks
        assert set(rig.market.books) == {"000002"}
        assert 2 <= len(rig.market.books) <= 5  # one a second
        assert "books      1 streamed, 1 polled every 1.0 s = 1/s" in rig.poller.plan.render() or (
            rig.poller.make_plan().book_per_s == 1.0
        )
        stream.cut()
        await rig.clock.advance(4.0)
        assert set(rig.market.books) == {"000001", "000002"}
        rig.poller.watch(["000001", "000002"])  # held, without an open order
        await rig.clock.advance(1.0)
        before = len(rig.market.books)
        await rig.clock.advance(5.0)
        assert len(rig.market.books) == before


@pytest.mark.parametrize("levels", [0, 1])
async def test_a_book_without_levels_is_not_delivered(levels: int) -> None:
    """KIS answers so for a symbol that it does not list: a paper order would wait for levels."""
    clock, delivered = ManualClock(), list[OrderBook]()

    class Source:
        async def order_book(self, symbol: str, _priority: RequestPriority) -> OrderBook:
            return OrderBook(symbol, (BookLevel(100.0, 5.0),) * levels, ())

    poller = BookPoller(cast(QuoteSource, Source()), clock, 1.0, lambda: ["X"], delivered.append)
    task = asyncio.create_task(poller.run())
    await clock.advance(3.0)
    task.cancel()
    await asyncio.wait({task})
    assert bool(delivered) == bool(levels)


def test_a_slow_key_polls_books_rarely() -> None:
    assert book_interval_s(18) == 1.0
    assert book_interval_s(1) == 10.0
    plan = plan_of(KisConfig(), FeedConfig(), 2500, MONDAY_OPEN, held=25)
    assert "books      15 streamed" in plan.render()


async def test_a_paper_order_pays_the_spread_of_the_upbit_stream(tmp_path: Path) -> None:
    """Tickers of Upbit have no quotes: the book of the stream has them."""
    market = MarketConfig(symbols=10, suspended=0, surges_per_hour=0, speed=5)
    ticks: list[Tick] = []
    symbol = "KRW-BTC"
    async with UpbitSimulator(UpbitSimulatorConfig(market=market)) as simulator:
        simulator.inject("spread", symbol, {"ticks": 20})
        upbit = UpbitConfig(url=simulator.url, stream_url=f"{simulator.ws_url}/websocket/v1")
        symbols = write_symbols(tmp_path / "symbols.txt", [symbol])
        config = FeedConfig(venue="upbit", symbols=symbols, interval_s=60.0)
        callbacks = FeedCallbacks(on_tick=ticks.append)
        async with UpbitClient.open(upbit, SystemClock()) as client:
            with Feed.attach(
                upbit_market_data(client, SystemClock()),
                config,
                tmp_path,
                SystemClock(),
                LISTED,
                (),
                callbacks,
            ) as feed:
                feed.watch([symbol])
                task = asyncio.ensure_future(feed.run())
                await _until(lambda: any(tick.ask > tick.price for tick in ticks), task)
                task.cancel()
                await asyncio.wait({task})
    tick = next(tick for tick in ticks if tick.ask > tick.price)
    assert tick.ask - tick.bid >= 20_000 * 2  # 21 levels of 1,000 won on each side, less the last
    venue = PaperMatchingEngine(PaperConfig(), FeesConfig(), Decimal(10**12), LISTED)
    venue.on_tick(tick, 0)
    request = OrderRequest(
        client_order_id="x",
        symbol=symbol,
        side=Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal("0.01"),
    )
    (fill,) = venue.submit("1", request, 0)
    assert fill.price == Decimal(repr(tick.ask))
