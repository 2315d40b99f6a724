"""Feed of one key: poller, stream and recorder, opened and closed together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from qts.domain import Clock, Market, RefusedError, market_for_symbol
from qts.feed.calendar import TradingCalendar, TradingDaySync
from qts.feed.config import FeedConfig
from qts.feed.ingest import QuoteIngest
from qts.feed.observer import Observer, Sink
from qts.feed.planner import Demand, ScanPlan, plan_scan
from qts.feed.poller import Poller, PollerStatus
from qts.feed.recorder import Recorder
from qts.feed.source import Client, FeedVenue, UpbitTickStream
from qts.feed.symbols import read_symbols
from qts.machine import DiskGuard
from qts.venues import (
    KisConfig,
    KisQuotes,
    KisStream,
    RateLimiter,
    RateLimiterStatus,
    UpbitClient,
    connect_kis,
    symbols_per_call,
)


class FeedStatus(msgspec.Struct, frozen=True):
    """Figures of the feed for the terminal, the dashboard and scripts."""

    seconds: float
    plan: str
    interval_s: float
    lag_s: float  # last scan beyond the planned interval
    records: int
    lost: int
    skipped: int  # while the disk was short of space
    recording: str  # on, off, or why it has stopped
    surges: int
    symbols_known: int
    streaming: bool
    watched: str  # what is held or on order, and how often it is priced
    poller: PollerStatus
    budget: RateLimiterStatus


class Feed:
    """Running feed; create it with `open` or `attach`."""

    def __init__(
        self, poller: Poller, ingest: QuoteIngest, limiter: RateLimiter, clock: Clock
    ) -> None:
        self.poller = poller
        self.limiter = limiter
        self._ingest = ingest
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._market = Market.KRX
        self._recorder: Recorder | None = None
        self._stream: KisStream | UpbitTickStream | None = None
        self._day_sync: TradingDaySync | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        kis: KisConfig,
        config: FeedConfig,
        home: Path,
        clock: Clock,
        sinks: Sequence[Sink] = (),
    ) -> AsyncIterator[Feed]:
        """Open a feed with exclusive use of the key."""
        read_symbols(config.symbols)  # report the most common mistake before using the key
        async with connect_kis(kis, home, clock) as client:
            with cls.attach(client, config, home, clock, sinks) as feed:
                yield feed

    @classmethod
    @contextmanager
    def attach(
        cls,
        client: Client,
        config: FeedConfig,
        home: Path,
        clock: Clock,
        sinks: Sequence[Sink] = (),
    ) -> Iterator[Feed]:
        """Open a feed on a shared client; `home` holds the records unless set elsewhere."""
        venue = FeedVenue.of(client, multi=config.multi_quotes)
        symbols = _symbols_of(venue.market, config)
        if venue.always_open:
            config = msgspec.structs.replace(config, always_open=True)
        recorder = _recorder(venue, config, home, clock)
        observer = Observer([*([recorder.write] if recorder else []), *sinks])
        session = uuid.uuid4().hex
        ingest = QuoteIngest(config, observer, session, mode=venue.mode, market=venue.market)
        poller = Poller(venue.source, venue.limiter, ingest, clock, symbols, config)
        feed = cls(poller, ingest, venue.limiter, clock)
        feed._market = venue.market
        feed._recorder = recorder
        quotes = venue.source
        if isinstance(quotes, KisQuotes) and not (venue.mode == "PAPER" or config.always_open):
            days = home / "trading-days.json"
            feed._day_sync = TradingDaySync(days, poller.calendar, clock, quotes.trading_days)
        if config.stream:
            if isinstance(client, UpbitClient):
                feed._stream = UpbitTickStream(client, clock, poller.on_quote)
            else:
                feed._stream = KisStream(client, clock, poller.on_quote)
            poller.attach_stream(feed._stream)
        try:
            yield feed
        finally:
            if recorder is not None:
                recorder.close()

    @property
    def stream(self) -> KisStream | None:
        """The one WebSocket that KIS allows a key; fill notices are subscribed on it."""
        return self._stream if isinstance(self._stream, KisStream) else None

    @property
    def plan(self) -> ScanPlan:
        return self.poller.plan

    def watch(self, symbols: Sequence[str]) -> None:
        """Price these symbols first, every second: what is held or on order, held ones first.

        They need not be in `feed.symbols`. Symbols of another market have no price here.
        """
        self.poller.watch([each for each in symbols if market_for_symbol(each) is self._market])

    def price_age_s(self, symbol: str) -> float | None:
        """Return the seconds since the price of a watched symbol was last confirmed.

        None outside the trading session and for a symbol that is not watched. May be called from
        any thread.
        """
        return self.poller.price_age_s(symbol)

    async def run(self) -> None:
        """Run until cancelled; raise on a permanent error."""
        parts = (self.poller, self._stream, self._day_sync)
        tasks = {asyncio.ensure_future(part.run()) for part in parts if part is not None}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def status(self) -> FeedStatus:
        recorder, poller = self._recorder, self.poller.status()
        return FeedStatus(
            seconds=round((self._clock.monotonic_ns() - self._started_ns) / 1e9, 1),
            plan=self.plan.description,
            interval_s=round(self.plan.interval_s, 1),
            lag_s=round(max(0.0, poller.last_scan_s - self.plan.interval_s), 3),
            records=recorder.written if recorder else 0,
            lost=recorder.lost if recorder else 0,
            skipped=recorder.skipped if recorder else 0,
            recording="off" if recorder is None else recorder.stopped or "on",
            surges=self._ingest.surges,
            symbols_known=len(self._ingest.cache),
            streaming=self._stream is not None and self._stream.live,
            watched=self.plan.watch_description,
            poller=poller,
            budget=self.limiter.status(),
        )


def plan_scan_offline(
    kis: KisConfig, config: FeedConfig, symbols: int, now: datetime, held: int = 0
) -> ScanPlan:
    """Plan the rest of today, or the next session, without a request."""
    streamed = min(held, KisStream.capacity) if config.stream else 0
    calendar = TradingCalendar(config.calendar_overrides, config.after_market)
    demand = Demand(
        symbols=symbols,
        per_call=symbols_per_call(kis, multi=config.multi_quotes),
        seconds_left=calendar.seconds_left(now) or calendar.next_open(now).seconds,
        day_left=kis.key_limits.per_day,
        asked_s=config.scan_s,
        bursts=config.max_bursts,
        burst_s=config.burst_s,
        watched=held - streamed,
        streamed=streamed,
    )
    return plan_scan(kis.key_limits, demand)


def _symbols_of(market: Market, config: FeedConfig) -> list[str]:
    symbols = read_symbols(config.symbols)
    for symbol in symbols:
        if market_for_symbol(symbol) is not market:
            raise RefusedError(
                f"feed.symbols, {config.symbols}: {symbol} is not listed in the {market} market; "
                f'feed.venue is "{config.venue}"'
            )
    return symbols


def _recorder(venue: FeedVenue, config: FeedConfig, home: Path, clock: Clock) -> Recorder | None:
    if not config.record:
        return None
    folder = config.record_dir or home / "record"
    min_free = None if config.min_free_mb is None else config.min_free_mb * 10**6
    guard = DiskGuard(folder, min_free)
    return Recorder(folder, clock, config.rotate_mb, list(venue.secrets), config.keep_days, guard)
