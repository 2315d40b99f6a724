"""The whole feed of one key: budget, client, stream, poller, recorder; opened and left as one."""

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
    """The figures that the terminal, the dashboard and scripts are shown."""

    seconds: float
    plan: str
    interval_s: float
    lag_s: float  # by how much the last scan took longer than planned
    records: int
    lost: int
    surges: int
    symbols_known: int
    streaming: bool
    poller: PollerStatus
    budget: RateLimiterStatus


class Feed:
    """Use `open`; `run` until cancelled."""

    def __init__(
        self, poller: Poller, intake: QuoteIngest, budget: RateLimiter, clock: Clock
    ) -> None:
        self.poller = poller
        self.budget = budget
        self._intake = intake
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._recorder: Recorder | None = None
        self._stream: KisStream | UpbitTickStream | None = None
        self._days: TradingDaySync | None = None

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
        """A feed that has the key to itself."""
        read_symbols(config.symbols)  # the commonest mistake, told before the key is taken
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
        """A feed beside others on one client; `home` keeps the records, unless set elsewhere."""
        origin = FeedVenue.of(client, multi=config.multi_quotes)
        symbols = _symbols_of(origin.market, config)
        if origin.always_open:
            config = msgspec.structs.replace(config, always_open=True)
        recorder = _recorder(origin, config, home, clock)
        observer = Observer([*([recorder.write] if recorder else []), *sinks])
        session = uuid.uuid4().hex
        intake = QuoteIngest(config, observer, session, mode=origin.mode, market=origin.market)
        poller = Poller(origin.source, origin.budget, intake, clock, symbols, config)
        feed = cls(poller, intake, origin.budget, clock)
        feed._recorder = recorder
        quotes = origin.source
        if isinstance(quotes, KisQuotes) and not (origin.mode == "PAPER" or config.always_open):
            days = home / "trading-days.json"
            feed._days = TradingDaySync(days, poller.calendar, clock, quotes.trading_days)
        if config.stream and config.max_bursts:
            if isinstance(client, UpbitClient):
                feed._stream = UpbitTickStream(client, clock, poller.take)
            else:
                feed._stream = KisStream(client, clock, poller.take)
            poller.use_stream(feed._stream)
        try:
            yield feed
        finally:
            if recorder is not None:
                recorder.close()

    @property
    def stream(self) -> KisStream | None:
        """The one session KIS allows a key: whoever needs fill notices asks for them here."""
        return self._stream if isinstance(self._stream, KisStream) else None

    @property
    def plan(self) -> ScanPlan:
        return self.poller.plan

    async def run(self) -> None:
        """Until cancelled; ends by an error that stays."""
        parts = (self.poller, self._stream, self._days)
        tasks = {asyncio.ensure_future(part.run()) for part in parts if part is not None}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def state(self) -> FeedStatus:
        recorder, poller = self._recorder, self.poller.state()
        return FeedStatus(
            seconds=round((self._clock.monotonic_ns() - self._began_ns) / 1e9, 1),
            plan=self.plan.sentence,
            interval_s=round(self.plan.interval_s, 1),
            lag_s=round(max(0.0, poller.last_scan_s - self.plan.interval_s), 3),
            records=recorder.written if recorder else 0,
            lost=recorder.lost if recorder else 0,
            surges=self._intake.surges,
            symbols_known=len(self._intake.cache),
            streaming=self._stream is not None and self._stream.live,
            poller=poller,
            budget=self.budget.state(),
        )


def plan_scan_offline(kis: KisConfig, config: FeedConfig, symbols: int, now: datetime) -> ScanPlan:
    """The plan of a fresh day without asking anybody: of today's rest, or of the next session."""
    calendar = TradingCalendar(config.calendar_overrides, config.after_market)
    demand = Demand(
        symbols=symbols,
        per_call=symbols_per_call(kis, multi=config.multi_quotes),
        seconds_left=calendar.seconds_left(now) or calendar.next_open(now).seconds,
        day_left=kis.key_limits.per_day,
        asked_s=config.interval_s,
        bursts=config.max_bursts,
        burst_s=config.burst_s,
    )
    return plan_scan(kis.key_limits, demand)


def _symbols_of(market: Market, config: FeedConfig) -> list[str]:
    symbols = read_symbols(config.symbols)
    for symbol in symbols:
        if market_for_symbol(symbol) is not market:
            raise RefusedError(
                f"feed.symbols, {config.symbols}: {symbol} is not of the {market} market; "
                f'feed.venue is "{config.venue}"'
            )
    return symbols


def _recorder(origin: FeedVenue, config: FeedConfig, home: Path, clock: Clock) -> Recorder | None:
    if not config.record:
        return None
    place = config.record_dir or home / "record"
    return Recorder(place, clock, config.rotate_mb, list(origin.secrets))
