"""What the publisher makes of the feed: events, the cache, and paper matching."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.cache import Cache, CacheConfig
from qts.cache.store import MemoryStore
from qts.domain import BookLevel, ManualClock, OrderBook, Tick
from qts.events import Event, EventEngine, EventsConfig
from qts.pipeline import Portfolio, TickPublisher
from qts.telemetry import trace_id_of
from tests.instruments import LISTED
from tests.telemetry.collector import recording


class Paper:
    def __init__(self) -> None:
        self.seen: list[Tick | OrderBook] = []

    def on_tick(self, tick: Tick) -> None:
        self.seen.append(tick)

    def on_book(self, book: OrderBook) -> None:
        self.seen.append(book)


@pytest.mark.parametrize(
    ("symbol", "price"),
    [("005930", 70_000.0), ("KRW-SHIB", 0.0151), ("KRW-BTC", 137_997_000.0)],
)
async def test_a_tick_and_a_book_reach_lane_cache_and_paper(symbol: str, price: float) -> None:
    clock, paper, events = ManualClock(), Paper(), list[Event]()
    engine = EventEngine(EventsConfig(), clock=clock)
    engine.on("PRICE_TICK", events.append)
    engine.on("ORDERBOOK_UPDATE", events.append)
    at = clock.now().timestamp()
    tick = Tick(symbol, price, 3.0, price, price * 2, at)
    book = OrderBook(symbol, (BookLevel(price, 4.0),), (BookLevel(price * 2, 5.0),), at)
    async with Cache.open(MemoryStore(clock), cast(Any, None), CacheConfig(), clock=clock) as cache:
        portfolio, into_bars = Portfolio(clock, LISTED), list[Tick]()
        publisher = TickPublisher(engine, portfolio, cache, into_bars.append, paper, 0)
        publisher.callbacks.on_tick(tick)
        publisher.callbacks.on_book(book)
        publisher.callbacks.on_book(replace(book, bids=()))  # within a quarter of a second
        with engine:
            assert engine.wait_drained(10)
        cached, quote = await cache.books.get(symbol), await cache.prices.get(symbol)
    assert [event.payload for event in events][:2] == [tick, book]
    assert paper.seen[:2] == [tick, book]
    assert into_bars == [tick]
    (bid,), (ask,) = cached.bids, cached.asks
    assert (bid.price, ask.price) == (Decimal(repr(price)), Decimal(repr(price * 2)))
    assert (quote.bid, quote.ask) == (bid.price, ask.price)


@given(st.integers(0, 7), st.integers(0, 30))
def test_one_of_so_many_ticks_is_traced(every: int, ticks: int) -> None:
    clock = ManualClock()
    cache: Any = Mock()
    with recording() as spans:
        engine: Any = Mock()
        publisher = TickPublisher(engine, Portfolio(clock, LISTED), cache, Mock(), None, every)
        on_tick = publisher.callbacks.on_tick
        for number in range(ticks):
            on_tick(Tick("005930", 70_000.0, at=float(number)))
        remembered = [at for at in range(ticks) if trace_id_of(("005930", float(at)))]
    assert engine.publish.call_count == publisher.count == ticks
    expected = [at for at in range(ticks) if every and (at + 1) % every == 0]
    assert remembered == expected
    assert [each.name for each in spans.get_finished_spans()] == ["tick"] * len(expected)


def test_without_traces_a_tick_takes_the_direct_way() -> None:
    unused: Any = Mock()
    publisher = TickPublisher(unused, unused, unused, unused, None, 1)
    assert publisher.callbacks.on_tick is publisher
