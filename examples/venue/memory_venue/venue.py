"""The venue: what QTS knows of it without a connection, and the connection."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated

import msgspec

from memory_venue.broker import MemoryBroker, MemoryOrderPreview
from memory_venue.data import (
    PER_CALL,
    STREAMED,
    MemoryHistory,
    MemoryHistoryRules,
    MemoryQuotes,
    MemoryStream,
    OfficeHours,
)
from memory_venue.exchange import Exchange
from memory_venue.market import BASES, TICK_TABLE, Market
from qts import domain
from qts.brokers import BrokerOptions, CalendarOptions, ConnectOptions, SymbolForm
from qts.domain import AccountKey, Clock, Instrument, InstrumentClass
from qts.venues import (
    Calendar,
    ClockSkew,
    InstrumentSource,
    MarketData,
    RateLimitConfig,
    RateLimiter,
    VenueLimits,
)


class MemoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table [venues.memory]."""

    account: Annotated[str, msgspec.Meta(min_length=1, description="name of the account")] = "mine"
    cash: Annotated[int, msgspec.Meta(ge=0, description="won in the account")] = 10_000_000
    office_hours: Annotated[
        bool, msgspec.Meta(description="closed at night and on weekends; false: always open")
    ] = False
    per_second: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="requests in any second")
    ] = 20


class MemoryConnection:
    """A connected venue."""

    def __init__(self, settings: MemoryConfig, key: AccountKey, options: ConnectOptions) -> None:
        clock, limits = options.clock, limits_of(settings)
        market = Market()
        self._key = key
        self._exchange = Exchange(market, clock, Decimal(settings.cash))
        self._limiter = RateLimiter(limits.rates, clock)
        self.skew = ClockSkew("memory", clock)
        self.history = MemoryHistory(market)
        self.preview = MemoryOrderPreview(self._exchange)
        self.data = MarketData(
            source=MemoryQuotes(market, self._limiter, clock),
            limiter=self._limiter,
            limits=limits,
            market=domain.Market.OTHER,
            mode="SIMULATION",
            calendar=options.calendar,
            open_stream=lambda on_quote, on_book: MemoryStream(market, clock, on_quote, on_book),
        )

    def broker(self, options: BrokerOptions) -> MemoryBroker:  # noqa: ARG002 - the port
        return MemoryBroker(self._exchange, self._key)

    def close(self) -> None:
        self._limiter.close()


class MemoryVenue:
    """Venue: a market in memory, with money that is not real."""

    name, title = "memory", "Memory"
    settings = MemoryConfig
    symbol_form = SymbolForm(re.compile(r"MEM-[A-Z]{3}", re.ASCII), "MEM-ONE")
    has_indices = False
    simulator = None

    def environment(self, settings: MemoryConfig) -> str:  # noqa: ARG002 - the port
        return "simulator"

    def account(self, settings: MemoryConfig) -> AccountKey:
        return AccountKey.of(self.name, "simulator", settings.account)

    def instruments(self, settings: MemoryConfig, clock: Clock) -> InstrumentSource:  # noqa: ARG002 - the port
        async def fetch() -> list[Instrument]:
            return [self._instrument(symbol) for symbol in BASES]

        return InstrumentSource(self.name, "simulator", fetch)

    def calendar(self, settings: MemoryConfig, options: CalendarOptions) -> Calendar | None:  # noqa: ARG002 - the port
        return OfficeHours() if settings.office_hours else None

    def limits(self, settings: MemoryConfig, *, multi_quotes: bool) -> VenueLimits:  # noqa: ARG002 - the port
        return limits_of(settings)

    def history(self, settings: MemoryConfig, calendar: Calendar | None) -> MemoryHistoryRules:  # noqa: ARG002 - the port
        return MemoryHistoryRules()

    @asynccontextmanager
    async def connect(
        self, settings: MemoryConfig, options: ConnectOptions
    ) -> AsyncIterator[MemoryConnection]:
        connection = MemoryConnection(settings, self.account(settings), options)
        try:
            yield connection
        finally:
            connection.close()

    def _instrument(self, symbol: str) -> Instrument:
        return Instrument(
            symbol=symbol,
            venue=self.name,
            market=domain.Market.OTHER,
            board="KRW",
            name_en=f"Example {symbol[4:].title()}",
            kind=InstrumentClass.COIN,
            tick_table=TICK_TABLE,
            lot=Decimal("0.01"),
            session=domain.ALWAYS_OPEN,
        )


def limits_of(settings: MemoryConfig) -> VenueLimits:
    rates = RateLimitConfig(
        per_second=settings.per_second,
        per_minute=settings.per_second * 60,
        per_day=1_000_000,
        orders_per_second=0,  # orders do not pass this limiter
        accounts_per_second=0,
    )
    return VenueLimits(rates, PER_CALL, scan_s=1.0, streamed=STREAMED, no_indices="there are none")
