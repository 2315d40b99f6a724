"""Venue in memory behind a real rate limiter, with settable prices and recorded calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from qts import domain
from qts.domain import BookLevel, ManualClock, OrderBook, QtsError
from qts.feed import (
    FeedConfig,
    Observer,
    PatternRecord,
    Poller,
    QuoteIngest,
    TradingCalendar,
)
from qts.venues import (
    MarketData,
    Quote,
    RateLimitConfig,
    RateLimiter,
    RequestPriority,
    VenueLimits,
)

MONDAY_OPEN = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)  # 09:00 in Seoul


@dataclass
class Market:
    """QuoteSource that replies after `latency_s`; `fail` may return an error to raise."""

    limiter: RateLimiter
    clock: ManualClock
    per_call: int = 30
    latency_s: float = 0.03
    prices: dict[str, float] = field(default_factory=dict)
    fail: Callable[[Sequence[str]], QtsError | None] = lambda _symbols: None
    books: list[str] = field(default_factory=list)
    calls: list[tuple[float, RequestPriority, tuple[str, ...]]] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=dict)
    max_in_flight: int = 0

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        async with self.limiter.request(priority):
            self.books.append(symbol)
        return OrderBook(symbol, (BookLevel(99.0, 5.0),), (BookLevel(101.0, 5.0),))

    async def quotes(
        self, choose: Callable[[], Sequence[str]], priority: RequestPriority
    ) -> list[Quote]:
        async with self.limiter.request(priority):
            symbols = tuple(choose())
            self.calls.append((self.clock.monotonic_ns() / 1e9, priority, symbols))
            if priority is RequestPriority.NORMAL:
                self._count(symbols, 1)
            await self.clock.sleep(self.latency_s)
            if priority is RequestPriority.NORMAL:
                self._count(symbols, -1)
            if error := self.fail(symbols):
                raise error
            return [
                Quote(symbol, self.prices.get(symbol, 100.0), 0.0, 0.0, 0.0, {}, "test")
                for symbol in symbols
            ]

    def _count(self, symbols: Sequence[str], change: int) -> None:
        for symbol in symbols:
            self.in_flight[symbol] = self.in_flight.get(symbol, 0) + change
            self.max_in_flight = max(self.max_in_flight, self.in_flight[symbol])

    def times(self, symbol: str, priority: RequestPriority | None = None) -> list[float]:
        return [at for at, p, symbols in self.calls if symbol in symbols and priority in (None, p)]


@dataclass
class PollerRig:
    market: Market
    poller: Poller
    ingest: QuoteIngest
    clock: ManualClock
    records: list[PatternRecord]


def codes(count: int) -> list[str]:
    return [f"{number:06}" for number in range(count)]


@asynccontextmanager
async def poller_on(
    symbols: int,
    limits: RateLimitConfig | None = None,
    config: FeedConfig | None = None,
    *,
    per_call: int = 30,
    start: datetime = MONDAY_OPEN,
) -> AsyncIterator[PollerRig]:
    clock = ManualClock(start)
    limiter = RateLimiter(limits or RateLimitConfig(per_second=18), clock)
    market = Market(limiter, clock, per_call)
    records: list[PatternRecord] = []
    config = config or FeedConfig(stream=False)
    ingest = QuoteIngest(config, Observer([records.append]), "test")
    venue = MarketData(
        source=market,
        limiter=limiter,
        limits=VenueLimits(limiter.limits, per_call, 30.0, no_indices="not served here"),
        market=domain.Market.KRX,
        mode="PROD",
        calendar=TradingCalendar(config.calendar_overrides, config.after_market),
    )
    poller = Poller(venue, ingest, clock, codes(symbols), config)
    try:
        yield PollerRig(market, poller, ingest, clock, records)
    finally:
        limiter.close()


@asynccontextmanager
async def running(rig: PollerRig) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(rig.poller.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


class Ticks:
    """TickStream that can be cut, be silent, or refuse symbols."""

    def __init__(self, clock: ManualClock, capacity: int = 40) -> None:
        self.capacity = capacity
        self.live = True
        self.symbols: set[str] = set()
        self.books: tuple[str, ...] = ()
        self.refused: set[str] = set()
        self.requests: list[tuple[float, str]] = []
        self.most = 0
        self._clock = clock
        self._registered: dict[str, float] = {}
        self._silent_since: float | None = None

    @property
    def _at(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    @property
    def silence_s(self) -> float:
        return 0.0 if self._silent_since is None else self._at - self._silent_since

    def registered_at(self, symbol: str) -> float | None:
        return self._registered.get(symbol)

    def subscribe(self, symbol: str) -> None:
        self.requests.append((self._at, symbol))
        assert len(self.symbols) < self.capacity
        if symbol in self.refused:
            return
        self.symbols.add(symbol)
        self.most = max(self.most, len(self.symbols))
        if self.live:
            self._registered[symbol] = self._at

    def unsubscribe(self, symbol: str) -> None:
        self.symbols.discard(symbol)
        self._registered.pop(symbol, None)

    def set_books(self, symbols: Sequence[str]) -> None:
        self.books = tuple(symbols[: self.capacity - len(self.symbols)])

    async def run(self) -> None:
        """Do nothing: tests cut and connect it."""

    def cut(self) -> None:
        self.live = False
        self._registered.clear()

    def connect(self) -> None:
        self.live = True
        self._registered = dict.fromkeys(self.symbols, self._at)

    def be_silent(self) -> None:
        self._silent_since = self._at


def at_random(
    share: float, error: Callable[[], QtsError]
) -> Callable[[Sequence[str]], QtsError | None]:
    rng = random.Random(7)  # noqa: S311 - the same every time
    return lambda _symbols: error() if rng.random() < share else None


def write_symbols(path: Path, symbols: Sequence[str]) -> Path:
    path.write_text("\n".join(symbols))
    return path
