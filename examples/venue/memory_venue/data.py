"""Market data of the market, as QTS reads it: quotes, stream, past bars and trading hours."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, date, datetime, timedelta

from memory_venue.market import BASES, OPENED, Market
from qts.domain import Clock, OrderBook, Timeframe
from qts.venues import (
    BarPage,
    EarliestBars,
    Quote,
    RateLimiter,
    RequestPriority,
    TradingSession,
)

PER_CALL = 10
STREAMED = 2
PAGE = 200  # bars
INTERVAL_S = 0.2  # between two ticks of the stream


class MemoryQuotes:
    """QuoteSource: each request passes the limiter, then chooses its symbols."""

    per_call = PER_CALL

    def __init__(self, market: Market, limiter: RateLimiter, clock: Clock) -> None:
        self._market, self._limiter, self._clock = market, limiter, clock

    async def quotes(
        self, choose: Callable[[], Sequence[str]], priority: RequestPriority
    ) -> list[Quote]:
        async with self._limiter.request(priority):
            known = [symbol for symbol in choose() if symbol in BASES]
        at = self._clock.now().timestamp()
        return [self._market.quote(symbol, at, "memory_rest") for symbol in known]

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        async with self._limiter.request(priority):
            return self._market.book(symbol, self._clock.now().timestamp())


class MemoryStream:
    """TickStream: the symbols that are subscribed, five times a second."""

    capacity = STREAMED
    live = False
    silence_s = 0.0  # a market in memory is never silent

    def __init__(
        self,
        market: Market,
        clock: Clock,
        on_quote: Callable[[Quote], None],
        on_book: Callable[[OrderBook], None],
    ) -> None:
        self._market, self._clock = market, clock
        self._on_quote, self._on_book = on_quote, on_book
        self._registered: dict[str, float] = {}
        self.books: tuple[str, ...] = ()

    @property
    def symbols(self) -> Collection[str]:
        return self._registered

    def registered_at(self, symbol: str) -> float | None:
        return self._registered.get(symbol)

    def subscribe(self, symbol: str) -> None:
        if symbol in BASES:  # another is refused: it is not among the symbols
            self._registered[symbol] = self._clock.monotonic_ns() / 1e9

    def unsubscribe(self, symbol: str) -> None:
        self._registered.pop(symbol, None)

    def set_books(self, symbols: Sequence[str]) -> None:
        self.books = tuple(each for each in symbols if each in BASES)[:STREAMED]

    async def run(self) -> None:
        self.live = True
        while True:
            at = self._clock.now().timestamp()
            for symbol in list(self._registered):
                self._on_quote(self._market.quote(symbol, at, "memory_ws"))
            for symbol in self.books:
                self._on_book(self._market.book(symbol, at))
            await self._clock.sleep(INTERVAL_S)


class MemoryHistoryRules:
    """HistoryRules: bars since 2025, of a market that never closes."""

    market = "memory"  # the name of the venue
    simulated = True
    zone = UTC
    per_second = 50.0

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:  # noqa: ARG002 - the port
        return EarliestBars(OPENED, "the market opened in 2025")

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        return end - bars * timeframe.seconds

    def latest(self, timeframe: Timeframe, now: float) -> float:
        return now // timeframe.seconds * timeframe.seconds

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:
        return math.ceil((end - start) / timeframe.seconds / PAGE)


class MemoryHistory:
    """BarHistory: pages of bars, from the newest to the oldest."""

    def __init__(self, market: Market) -> None:
        self._market = market

    async def symbols(self) -> Collection[str]:
        return BASES

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        step = timeframe.seconds
        last = end // step * step
        first = max(start // step * step + step, last - (PAGE - 1) * step)
        count = int((last - first) // step) + 1
        bars = [self._market.bar(symbol, timeframe, first + step * n) for n in range(count)]
        return BarPage(bars, max(start, first - step))


class OfficeHours:
    """Calendar: Monday to Friday, 09:00 to 17:00 UTC."""

    def trades_on(self, day: date) -> bool:
        return day.weekday() < 5

    def sessions(self, day: date) -> list[TradingSession]:
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        nine, five = midnight + timedelta(hours=9), midnight + timedelta(hours=17)
        return [TradingSession("regular", nine, five)] if self.trades_on(day) else []

    def current(self, now: datetime) -> TradingSession | None:
        found = self.sessions(now.astimezone(UTC).date())
        return next((each for each in found if each.opens_at <= now < each.closes_at), None)

    def seconds_left(self, now: datetime) -> float:
        found = self.sessions(now.astimezone(UTC).date())
        left = (each.closes_at - max(now, each.opens_at) for each in found)
        return max(0.0, sum(each.total_seconds() for each in left))

    def next_open(self, now: datetime) -> TradingSession:
        day = now.astimezone(UTC).date()
        week = (day + timedelta(days=n) for n in range(8))
        found = (each for day in week for each in self.sessions(day))
        return next(each for each in found if now < each.closes_at)

    def closes_at(self, day: date) -> datetime | None:
        return next((each.closes_at for each in self.sessions(day)), None)
