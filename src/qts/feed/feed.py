"""Feed of one key: poller, stream and recorder, opened and closed together."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from qts import telemetry
from qts.domain import Clock, Instruments, RefusedError
from qts.feed.calendar import TradingDaySync
from qts.feed.config import FeedConfig
from qts.feed.ingest import (
    NO_CALLBACKS,
    FeedCallbacks,
    Observer,
    PatternRecord,
    QuoteIngest,
    Sink,
    ignore,
)
from qts.feed.planner import Demand, ScanPlan, plan_scan, read_symbols
from qts.feed.poller import FULL_DAY_S, Poller, PollerStatus
from qts.feed.recorder import Recorder
from qts.feed.requests import IndexPoller, index_codes
from qts.machine import DiskGuard
from qts.venues import Calendar, MarketData, RateLimiter, RateLimiterStatus, TickStream, VenueLimits

UNREAD_INDICES = "only a run reads them"

log = telemetry.logger("feed")


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


class PriceFeed(Protocol):
    """Feed as a run uses it: one on the venue, or that of another process."""

    shares_key: bool
    is_recorded: bool

    @property
    def calendar(self) -> Calendar | None: ...
    @property
    def is_open(self) -> bool: ...
    def watch(self, symbols: Sequence[str], on_order: Collection[str] = ()) -> None: ...
    def price_age_s(self, symbol: str) -> float | None: ...
    def base_price(self, symbol: str) -> float: ...
    def status(self) -> FeedStatus: ...
    async def run(self, active: asyncio.Event | None = None) -> None: ...


class Feed:
    """Running feed, created by `attach`."""

    def __init__(
        self, poller: Poller, ingest: QuoteIngest, limiter: RateLimiter, clock: Clock
    ) -> None:
        self.poller = poller
        self.limiter = limiter
        self._ingest = ingest
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._venue = ""
        self._always_open = False
        self._instruments = Instruments()
        self._recorder: Recorder | None = None
        self.shares_key = False  # with the runs on the same key; one of them has the stream
        self.is_recorded = True  # where the settings ask for records
        self._stream: TickStream | None = None
        self._day_sync: TradingDaySync | None = None
        self._indices: IndexPoller | None = None

    @classmethod
    @contextmanager
    def attach(
        cls,
        data: MarketData,
        config: FeedConfig,
        home: Path,
        clock: Clock,
        instruments: Instruments,
        sinks: Sequence[Sink] = (),
        callbacks: FeedCallbacks = NO_CALLBACKS,
        symbols: Sequence[str] | None = None,
    ) -> Iterator[Feed]:
        """Open a feed on a connected venue; `home` holds the records unless set elsewhere.

        `callbacks` take every tick first; the recorder and `sinks` take the record of its quote.
        `symbols` are those of this venue where the settings list several venues' together.
        """
        if callbacks.on_index is ignore and not data.limits.no_indices:
            limits = data.limits._replace(no_indices=UNREAD_INDICES)
            data = msgspec.structs.replace(data, limits=limits)
        symbols = _symbols_of(config, instruments) if symbols is None else symbols
        _check_index(config, data, symbols)
        config = config.at_venue(data.limits, always_open=data.calendar is None)
        recorder = _recorder(data, config, home, clock)

        def write(record: PatternRecord) -> None:
            if recorder is not None and feed.is_recorded:
                recorder.write(record)

        observer = Observer([*([write] if recorder else []), *sinks])
        session = uuid.uuid4().hex
        ingest = QuoteIngest(
            config, observer, session, callbacks, mode=data.mode, market=data.market
        )
        poller = Poller(data, ingest, clock, symbols, config)
        feed = cls(poller, ingest, data.limiter, clock)
        feed._venue, feed._instruments = config.venue_name, instruments
        feed._always_open = config.always_open
        feed._recorder = recorder
        feed.shares_key = data.limits.shares_key
        if data.trading_days is not None and not config.always_open:
            feed._day_sync = TradingDaySync(home / "trading-days.json", data.trading_days, clock)
        if data.indices is not None and poller.plan.demand.indices:
            feed._indices = IndexPoller(
                data.indices, clock, config, callbacks.on_index, lambda: poller.status().open
            )
        if config.stream and data.open_stream is not None:
            feed._stream = data.open_stream(poller.on_quote, poller.on_book)
            poller.attach_stream(feed._stream)
        try:
            yield feed
        finally:
            if recorder is not None:
                recorder.close()

    @property
    def calendar(self) -> Calendar | None:
        """The calendar that applies; None for a market that never closes, or a simulator."""
        return None if self._always_open else self.poller.calendar

    @property
    def is_open(self) -> bool:
        """Whether the market trades now, and the feed polls it."""
        return self.poller.status().open

    @property
    def plan(self) -> ScanPlan:
        return self.poller.plan

    def watch(self, symbols: Sequence[str], on_order: Collection[str] = ()) -> None:
        """Price these symbols first, every second: what is held or on order, held ones first.

        Their order books are streamed as far as possible, and polled for those `on_order`.

        They need not be in `feed.symbols`. Symbols of another venue have no price here; those that
        no venue lists are watched, since they are held.
        """
        venues = ("", self._venue)
        mine = [each for each in symbols if self._instruments[each].venue in venues]
        self.poller.watch(mine, on_order)

    def price_age_s(self, symbol: str) -> float | None:
        """Return the seconds since the price of a watched symbol was last confirmed.

        None outside the trading session and for a symbol that is not watched. May be called from
        any thread.
        """
        return self.poller.price_age_s(symbol)

    def base_price(self, symbol: str) -> float:
        """Return the price that the day's limits are computed from; 0 where it is not known."""
        return self._ingest.base_price(symbol)

    async def run(self, active: asyncio.Event | None = None) -> None:
        """Run until cancelled; raise on a permanent error.

        Until `active` is set, another run needs the key: what is watched is polled, nothing is
        scanned and no stream is opened.
        """
        if active is not None and self.shares_key:
            await self._poll_watched(active)
        parts = (self.poller, self._stream, self._day_sync, self._indices)
        tasks = {asyncio.ensure_future(part.run()) for part in parts if part is not None}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _poll_watched(self, active: asyncio.Event) -> None:
        polling = asyncio.ensure_future(self.poller.run(watched_only=True))
        waiting = asyncio.ensure_future(active.wait())
        try:
            await asyncio.wait({polling, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                polling.result()
        finally:
            polling.cancel()
            waiting.cancel()
            await asyncio.wait({polling, waiting})

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
    limits: VenueLimits,
    calendar: Calendar | None,
    config: FeedConfig,
    symbols: int,
    now: datetime,
    held: int = 0,
) -> ScanPlan:
    """Plan the rest of today, or the next session, without a request; `held` is that of a run."""
    no_indices = limits.no_indices or ("" if held else UNREAD_INDICES)
    capacity = limits.streamed if config.stream else 0
    streamed = min(held, capacity)
    left_s = FULL_DAY_S
    if calendar is not None:
        left_s = calendar.seconds_left(now) or calendar.next_open(now).seconds
    demand = Demand(
        symbols=symbols,
        per_call=limits.per_call,
        seconds_left=left_s,
        day_left=limits.rates.per_day,
        asked_s=config.at_venue(limits, always_open=False).scan_s,
        bursts=config.max_bursts,
        burst_s=config.burst_s,
        watched=held - streamed,
        streamed=streamed,
        indices=0 if no_indices else len(index_codes(config)),
        index_interval_s=config.index_interval_s,
        no_indices=no_indices,
        streamed_books=min(held, capacity - streamed),
    )
    return plan_scan(limits.rates, demand)


def _symbols_of(config: FeedConfig, instruments: Instruments) -> list[str]:
    """Return the symbols to watch; refuse those of another venue, and a list that has no match."""
    symbols = read_symbols(config.symbols)
    if not any(each.venue == config.venue_name for each in instruments):
        return symbols  # the venue's lists could not be had: nothing to compare with
    unlisted = [each for each in symbols if instruments[each].venue != config.venue_name]
    foreign = [each for each in unlisted if instruments[each].venue]
    if foreign or len(unlisted) == len(symbols):
        first = (foreign or unlisted)[0]
        raise RefusedError(
            f"feed.symbols, {config.symbols}: {first} is not listed at {config.venue_name}, the"
            f" feed.venue{'' if foreign else instruments.nearest(first)}"
        )
    if unlisted:
        log.warning(
            "feed symbols not listed by the venue",
            venue=config.venue_name,
            count=len(unlisted),
            first=unlisted[0] + instruments.nearest(unlisted[0]),
        )
    return symbols


def symbols_by_venue(path: Path | None, listed: Mapping[str, Instruments]) -> dict[str, list[str]]:
    """Return the symbols of each venue of a run, by the lists of the venues.

    Refuse a symbol that two of them list, that none lists, and a venue that is left without one.
    """
    check_distinct(listed)
    found: dict[str, list[str]] = {venue: [] for venue in listed}
    for symbol in read_symbols(path):
        venue = next((each for each in listed if listed[each][symbol].venue == each), None)
        if venue is None:
            raise RefusedError(
                f"feed.symbols, {path}: {symbol} is not listed at {' or '.join(listed)}"
            )
        found[venue].append(symbol)
    for venue, symbols in found.items():
        if not symbols:
            raise RefusedError(f"feed.symbols, {path}: no symbol is listed at {venue}")
    return found


def check_distinct(listed: Mapping[str, Instruments]) -> None:
    """Refuse venues that list the same symbol: an order must have one venue."""
    for one, other in itertools.combinations(listed, 2):
        if both := _symbols_listed(listed, one) & _symbols_listed(listed, other):
            raise RefusedError(
                f"feed.venue: symbol {min(both)} is listed at {one} and at {other}; expected venues"
                " without a symbol in common: run them apart"
            )


def _symbols_listed(listed: Mapping[str, Instruments], venue: str) -> set[str]:
    known = listed[venue]
    return {each.symbol for each in known if each.venue == venue and not each.delisted}


def _check_index(config: FeedConfig, data: MarketData, symbols: Sequence[str]) -> None:
    """Refuse an index that the venue of the feed cannot deliver."""
    proxy, code = config.index_symbol, config.volatility_index
    if proxy is not None and data.indices is not None:
        raise RefusedError(
            f"feed.index_symbol is {proxy}; {config.venue_name} has indices, expected it unset"
        )
    if proxy is not None and proxy not in symbols:
        raise RefusedError(
            f"feed.index_symbol is {proxy}; expected one of feed.symbols, {config.symbols}"
        )
    if code is not None and (data.indices is None or not (len(code) == 4 and code.isdigit())):
        raise RefusedError(f"feed.volatility_index is {code!r}; expected 4 digits, with KIS only")


def _recorder(data: MarketData, config: FeedConfig, home: Path, clock: Clock) -> Recorder | None:
    if not config.record:
        return None
    folder = config.record_dir or home / "record"
    min_free = None if config.min_free_mb is None else config.min_free_mb * 10**6
    guard = DiskGuard(folder, min_free)
    return Recorder(folder, clock, config.rotate_mb, list(data.secrets), config.keep_days, guard)
