"""Market data of a venue: the ports of quotes, live ticks and calendar, and its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import date, datetime
from typing import NamedTuple, Protocol

import msgspec

from qts.domain import Instrument, Market, OrderBook, Secret
from qts.venues.quote import IndexQuote, Quote
from qts.venues.ratelimit.limiter import RateLimiter
from qts.venues.ratelimit.limits import RateLimitConfig, RequestPriority

Choose = Callable[[], Sequence[str]]


class TradingSession(NamedTuple):
    """Session of one trading day."""

    name: str
    opens_at: datetime
    closes_at: datetime

    @property
    def seconds(self) -> float:
        return (self.closes_at - self.opens_at).total_seconds()


class Calendar(Protocol):
    """Trading days and sessions of a market that closes. Times may be in any timezone."""

    def trades_on(self, day: date) -> bool: ...

    def sessions(self, day: date) -> Sequence[TradingSession]:
        """Return all sessions of a day in order; none when the market is closed."""
        ...

    def current(self, now: datetime) -> TradingSession | None:
        """Return the followed session that is open now."""
        ...

    def seconds_left(self, now: datetime) -> float:
        """Return the trading seconds left today in the followed sessions."""
        ...

    def next_open(self, now: datetime) -> TradingSession:
        """Return the followed session that is open, or the next one."""
        ...

    def closes_at(self, day: date) -> datetime | None:
        """Return the close of the last followed session of a day; None without trading."""
        ...


class PublishedDays(NamedTuple):
    """Trading days that a venue publishes: how to fetch those from a day on, and who takes them."""

    fetch: Callable[[date], Awaitable[dict[date, bool]]]
    set_day: Callable[[date, bool], None]


class InstrumentSource(NamedTuple):
    """Where the instruments of a venue come from; those of a simulator are kept apart."""

    venue: str
    environment: str  # real or simulator
    fetch: Callable[[], Awaitable[list[Instrument]]]
    """Fetch all of them; needs no key. Raises UnreachableError if the lists cannot be had."""


class QuoteSource(Protocol):
    """Last prices and order books by request. Every request passes the rate limiter."""

    @property
    def per_call(self) -> int:
        """Symbols per request."""
        ...

    async def quotes(self, choose: Choose, priority: RequestPriority) -> list[Quote]:
        """Send one request; `choose` returns its symbols once the limiter has granted it."""
        ...

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        """Send one request for the order book of a symbol."""
        ...


class TickStream(Protocol):
    """Live ticks of a few symbols, delivered to the callback it was created with.

    A symbol that the venue refuses leaves `symbols`.
    """

    capacity: int

    @property
    def live(self) -> bool: ...
    @property
    def symbols(self) -> Collection[str]: ...
    @property
    def books(self) -> Collection[str]: ...
    @property
    def silence_s(self) -> float:
        """Seconds since the last message of the connection."""
        ...

    def registered_at(self, symbol: str) -> float | None:
        """Return when the venue accepted the symbol on this connection, None if it has not."""
        ...

    def subscribe(self, symbol: str) -> None: ...
    def unsubscribe(self, symbol: str) -> None: ...
    def set_books(self, symbols: Sequence[str]) -> None:
        """Replace the symbols with order books, most important first; as many as there is room."""
        ...

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        ...


OpenStream = Callable[[Callable[[Quote], None], Callable[[OrderBook], None]], TickStream]


class IndexSource(Protocol):
    async def index(self, code: str, priority: RequestPriority) -> IndexQuote: ...


class VenueLimits(NamedTuple):
    """What a venue allows for market data, known without a connection."""

    rates: RateLimitConfig
    per_call: int  # symbols per request
    scan_s: float  # scan of all symbols, unless the settings say otherwise
    streamed: int = 0  # symbols that one stream takes
    no_indices: str = ""  # why it has no index prices
    shares_key: bool = False  # runs on one key share its requests, and one of them has the stream


class MarketData(msgspec.Struct, frozen=True, kw_only=True):
    """Market data of a connected venue, as the feed uses it."""

    source: QuoteSource
    limiter: RateLimiter
    limits: VenueLimits
    market: Market
    mode: str  # PROD, PAPER or SIMULATION, as records say it
    calendar: Calendar | None  # None: the market never closes
    secrets: tuple[Secret, ...] = ()  # that records must not contain
    open_stream: OpenStream | None = None  # for the callbacks of ticks and of order books
    indices: IndexSource | None = None
    trading_days: PublishedDays | None = None
