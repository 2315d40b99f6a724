"""The venue in memory passes the conformance suites of QTS."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from memory_venue import MemoryVenue
from memory_venue.broker import MemoryBroker
from memory_venue.exchange import Exchange
from memory_venue.market import TICKS, Market
from memory_venue.venue import MemoryConfig

from qts.domain import ManualClock
from qts.testing import (
    BrokerMarket,
    BrokerRecord,
    BrokerSuite,
    CalendarSuite,
    HistorySuite,
    InstrumentSuite,
    QuoteSuite,
    VenueSuite,
)

MONDAY = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Memory:
    """The fixtures that every suite needs."""

    @pytest.fixture
    def venue(self) -> MemoryVenue:
        return MemoryVenue()

    @pytest.fixture
    def settings(self) -> MemoryConfig:
        return MemoryConfig()


class TestVenue(Memory, VenueSuite):
    pass


class TestInstruments(Memory, InstrumentSuite):
    pass


class TestQuotes(Memory, QuoteSuite):
    pass


class TestHistory(Memory, HistorySuite):
    pass


class TestCalendar(Memory, CalendarSuite):
    @pytest.fixture
    def settings(self) -> MemoryConfig:
        return MemoryConfig(office_hours=True)


class MemoryMarket(BrokerMarket):
    """The market under the control of the suite."""

    symbol, quantity = "MEM-ONE", Decimal(2)
    start_cash = Decimal(10**9)

    def __init__(self) -> None:
        clock = ManualClock(MONDAY)
        self.exchange = Exchange(Market(), clock, self.start_cash)
        account = MemoryVenue().account(MemoryConfig())
        super().__init__(MemoryBroker(self.exchange, account), clock)

    def quote(self) -> tuple[Decimal, Decimal]:
        book = self.exchange.market.book(self.symbol, float(int(self.clock.now().timestamp())))
        return Decimal(repr(book.bids[0].price)), Decimal(repr(book.asks[0].price))

    def tick(self) -> Decimal:
        return TICKS.size(self.quote()[0])

    def more_than_shown(self) -> Decimal:
        return Decimal(13)

    async def move(self, percent: float) -> None:
        self.exchange.market.shift[self.symbol] *= 1 + percent / 100

    async def go(self) -> None:
        await super().go()
        self.exchange.settle()

    async def record(self) -> dict[str, BrokerRecord]:
        return {
            number: BrokerRecord(
                order.request.quantity,
                order.filled,
                sum((fill.quantity * fill.price for fill in order.fills), Decimal(0)),
                order.is_open,
            )
            for number, order in self.exchange.orders.items()
        }

    async def cash(self) -> Decimal:
        return self.exchange.cash


class TestBroker(BrokerSuite):
    @pytest.fixture
    def market(self) -> MemoryMarket:
        return MemoryMarket()
