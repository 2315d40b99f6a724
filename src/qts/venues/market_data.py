"""Ports of a venue: quotes, live ticks, calendar and past bars, its limits, and its clock."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from qts import telemetry
from qts.domain import Bar, Clock, Instrument, Market, OperationError, OrderBook, Secret, Timeframe
from qts.venues.config import RateLimitConfig, RequestPriority
from qts.venues.rate_limiter import RateLimiter


class Quote(msgspec.Struct, frozen=True, gc=False):
    """Last price of a symbol; `volume` accumulates over the day, `raw` is the venue's row.

    0 stands for what the venue did not send.
    """

    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    raw: dict[str, Any]
    source: str  # kis_rest, kis_ws, upbit_rest, upbit_ws
    at: float = 0.0  # of the last trade by the venue's clock, in seconds since the Unix epoch
    base: float = 0.0  # price that the day's limits are computed from


class IndexQuote(msgspec.Struct, frozen=True, gc=False):
    """Value of an index; `change` is the fraction since the previous close, 0 where unknown."""

    name: str
    value: float
    change: float = 0.0
    is_volatility: bool = False  # an index of volatility, such as VKOSPI


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


SAMPLES = 15
MAX_S = 1.0  # unless the settings say otherwise (venues.max_skew_s)
MAX_ROUND_TRIP_S = 1.0  # a slower reply says too little about the moment it was written
KEPT_NS = 15 * 60 * 10**9  # an order may be searched for after one of the clocks was set
TOLERANCE = timedelta(seconds=2)  # venues give times to the second, and the skew is an estimate

_gauge = telemetry.gauge(
    "qts_venue_clock_skew_seconds", "How far the venue's clock is ahead of ours.", ("venue",)
)


class ClockSkew:
    """Median over the last replies; positive where the venue's clock is ahead."""

    def __init__(self, venue: str, clock: Clock) -> None:
        self.max_s = MAX_S
        self._venue = venue
        self._clock = clock
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        # Time and size of the skews since the largest one of the last 15 minutes, largest first.
        self._largest: deque[tuple[int, float]] = deque()

    def record(self, date: str | None, sent_ns: int) -> None:
        """Add a reply by its Date header and the monotonic time of its request.

        The header is cut to the second, and the reply was written between request and arrival:
        half a second and half of the round trip are the best guess.
        """
        round_trip_s = (self._clock.monotonic_ns() - sent_ns) / 1e9
        if date is None or not 0 <= round_trip_s <= MAX_ROUND_TRIP_S:
            return
        try:
            written = parsedate_to_datetime(date)
        except ValueError:
            return
        if written.tzinfo is None:  # "-0000" is UTC too
            written = written.replace(tzinfo=UTC)
        ahead_s = (written - self._clock.now()).total_seconds()
        self._samples.append(ahead_s + 0.5 + round_trip_s / 2)
        seconds = statistics.median(self._samples)
        self._keep_largest(abs(seconds))
        _gauge.labels(self._venue).set(seconds)

    def _keep_largest(self, size_s: float) -> None:
        now_ns, largest = self._clock.monotonic_ns(), self._largest
        while largest and largest[-1][1] <= size_s:
            largest.pop()
        largest.append((now_ns, size_s))
        while largest[0][0] < now_ns - KEPT_NS:
            largest.popleft()

    @property
    def seconds(self) -> float | None:
        """How far the venue is ahead, or None before the first reply."""
        return statistics.median(self._samples) if self._samples else None

    def is_synced(self) -> bool:
        """Return whether the clocks differ by at most `max_s`."""
        return abs(self.seconds or 0.0) <= self.max_s

    @property
    def offset(self) -> timedelta:
        return timedelta(seconds=self.seconds or 0.0)

    @property
    def margin(self) -> timedelta:
        """By how much to widen a search that compares the venue's times with ours.

        The largest skew of the last 15 minutes counts: the order was sent before the search.
        """
        size_s = self._largest[0][1] if self._largest else 0.0
        return timedelta(seconds=size_s) + TOLERANCE


SETTLE_S = 10  # a bar may change shortly after its end, and our clock may be ahead


class BarPage(NamedTuple):
    """Reply to one request: every bar that closed after `start`, up to the requested end."""

    bars: list[Bar]
    """Closed bars with a trade, oldest first."""
    start: float


class EarliestBars(NamedTuple):
    """Begin of what a venue offers, in epoch seconds, and the reason for it."""

    at: float
    reason: str


class HistoryRules(Protocol):
    """What a venue offers of the past, known without a request. Times are epoch seconds."""

    @property
    def market(self) -> Market | str:
        """Market of the bars, by which the catalogue keeps them; else the name of the venue."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether the bars come from a simulator; they have a separate catalogue."""
        ...

    @property
    def zone(self) -> tzinfo:
        """Time zone in which the days of the market begin."""
        ...

    @property
    def per_second(self) -> float:
        """Requests that the limits of the key allow for history."""
        ...

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:
        """Return from when on the venue offers bars, and why not from earlier on."""
        ...

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        """Return from when on a symbol that trades all the time has so many bars up to `end`."""
        ...

    def latest(self, timeframe: Timeframe, now: float) -> float:
        """Return the close of the last bar that no longer changes."""
        ...

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:
        """Return how many pages a symbol needs at most for the bars of (start, end]."""
        ...


class BarHistory(Protocol):
    """Past bars of a venue, read from the newest to the oldest."""

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        """Request the newest bars of (start, end]; the caller continues at the page's start."""
        ...

    async def symbols(self) -> Collection[str] | None:
        """Return the symbols that it has bars of; None: a venue that does not list them."""
        ...


def check_clock(venue: str, skew: ClockSkew) -> None:
    """Raise OperationError if bars that have ended by our clock have not by the venue's."""
    behind_s = -(skew.seconds or 0.0)
    if behind_s > SETTLE_S - 1:
        raise OperationError(
            f"the clock of this machine is {behind_s:.0f} s ahead of that of {venue}: the last "
            "bars may still change; set the clock"
        )
