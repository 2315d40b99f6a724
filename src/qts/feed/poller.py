"""Poller of all symbols in turn, and of watched symbols and bursts once a second.

    watched   one request waits in the limiter (WATCHED), once a second    ──┐
    bursts    one request waits in the limiter (BURST), once a second      ──┤ granted: choose
    scan      one request waits in the limiter (NORMAL, paced by the plan) ──┘ the symbols now

Each priority has one waiting request, so a permit goes to the more urgent one, and its symbols are
chosen only then. A batch has one request in flight at a time; a refused or lost batch goes first
with the next permit. The plan is recomputed every minute, when the market opens, and when what is
watched or streamed changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from qts import telemetry
from qts.domain import Clock
from qts.feed.calendar import TradingCalendar
from qts.feed.config import FeedConfig
from qts.feed.fast_poller import FastPoller
from qts.feed.ingest import QuoteIngest
from qts.feed.planner import WATCH_INTERVAL_S, Demand, ScanPlan, plan_scan
from qts.feed.quote_requests import QuoteRequester
from qts.feed.scan import Scan
from qts.feed.source import QuoteSource, TickStream
from qts.venues import Quote, RateLimiter, RequestPriority

REPLAN_INTERVAL_S = 60.0
FULL_DAY_S = 6.5 * 3600

log = telemetry.logger("feed")


class PollerStatus(msgspec.Struct, frozen=True):
    """Progress of the scan."""

    scans: int
    position: int
    batches: int
    last_scan_s: float
    polls: int
    failed: int
    refused: int
    in_flight: int
    bursts: list[str]
    open: bool


class Poller:
    """Poller for one event loop."""

    def __init__(
        self,
        source: QuoteSource,
        limiter: RateLimiter,
        ingest: QuoteIngest,
        clock: Clock,
        symbols: Sequence[str],
        config: FeedConfig,
    ) -> None:
        self._limiter = limiter
        self._ingest = ingest
        self._clock = clock
        self._config = config
        self._count, self._per_call = len(symbols), source.per_call
        self._calendar = TradingCalendar(config.calendar_overrides, config.after_market)
        self._requester = QuoteRequester(source, clock, self.on_quote)
        self._scan = Scan(symbols, source.per_call, clock, limiter.skip_pace)
        self._fast = FastPoller(
            ingest.bursts, self._requester, clock, config, source.per_call, self._replan
        )
        self._open = False
        self.plan = self.make_plan()

    @property
    def calendar(self) -> TradingCalendar:
        return self._calendar

    def attach_stream(self, stream: TickStream) -> None:
        """Use real ticks for watched symbols and bursts while the stream has capacity."""
        self._fast.attach_stream(stream)

    def watch(self, symbols: Sequence[str]) -> None:
        """Replace the symbols that are held or on order, most important first."""
        self._fast.watch(symbols)

    def price_age_s(self, symbol: str) -> float | None:
        """Return the age of a watched symbol's price; None outside the trading session."""
        return self._fast.price_age_s(symbol) if self._open else None

    def on_quote(self, quote: Quote) -> None:
        """Ingest a quote of a poll or a stream."""
        at = self._clock.monotonic_ns() / 1e9
        if quote.price > 0:
            self._fast.confirm(quote.symbol, at)
        self._ingest.ingest(quote, at, self._clock.now())

    def make_plan(self) -> ScanPlan:
        """Plan for the rest of today, or for a whole day when the market is closed."""
        left_s = 0.0 if self._config.always_open else self._calendar.seconds_left(self._clock.now())
        left_s = left_s or FULL_DAY_S
        polled, streamed = self._fast.watched
        demand = Demand(
            symbols=max(1, self._count),
            per_call=self._per_call,
            seconds_left=left_s,
            day_left=self._limiter.remaining_within(left_s),
            asked_s=self._config.scan_s,
            bursts=self._config.max_bursts,
            burst_s=self._config.burst_s,
            watched=polled,
            streamed=streamed,
        )
        return plan_scan(self._limiter.limits, demand)

    def status(self) -> PollerStatus:
        scan, requester = self._scan, self._requester
        return PollerStatus(
            scans=scan.scans,
            position=scan.position,
            batches=len(scan.batches),
            last_scan_s=round(scan.last_s, 3),
            polls=requester.polls,
            failed=requester.failed,
            refused=requester.refused,
            in_flight=scan.in_flight,
            bursts=self._ingest.bursts.symbols,
            open=self._open,
        )

    async def run(self) -> None:
        """Poll while the market is open, until cancelled; raise on a permanent error."""
        try:
            while True:
                await self._wait_open()
                await self._poll_until_closed()
        finally:
            self._open = False
            await self._requester.stop()

    async def _poll_until_closed(self) -> None:
        coroutines = (
            self._requester.wait_fatal(),
            self._scan_all(),
            self._fast.run(),
            self._replan_periodically(),
            self._wait_closed(),
        )
        tasks = {asyncio.ensure_future(coroutine) for coroutine in coroutines}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _scan_all(self) -> None:
        self._scan.start()
        while True:
            await self._scan.ready()
            await self._requester.enqueue(self._scan.choose, RequestPriority.NORMAL)

    # -- planning

    async def _replan_periodically(self) -> None:
        while True:
            self._replan()
            await self._clock.sleep(REPLAN_INTERVAL_S)

    def _replan(self) -> None:
        plan = self.make_plan()
        changed = abs(plan.interval_s - self.plan.interval_s) > 0.05 * self.plan.interval_s
        slower = plan.watch_interval_s > max(WATCH_INTERVAL_S, self.plan.watch_interval_s)
        self.plan = plan
        self._limiter.reserve_watched(plan.watch_per_s)
        self._limiter.pace(plan.rate_per_s or 1 / FULL_DAY_S)
        self._fast.apply_plan(plan)
        self._ingest.interval_ms["normal"] = plan.interval_s * 1e3
        # With a slow scan, prices must be kept longer to be compared at all.
        self._ingest.cache.ttl_s = max(self._config.cache_ttl_s, 2 * plan.interval_s)
        self._ingest.cache.clean(self._clock.monotonic_ns() / 1e9)
        if changed:
            log.info("scan replanned", plan=plan.description, bound=plan.bound)
        if slower:
            log.warning("held symbols cannot be polled each second", watched=plan.watch_description)

    # -- opening hours

    async def _wait_open(self) -> None:
        while not self._is_open():
            opens = self._calendar.next_open(self._clock.now()).opens_at
            left_s = (opens - self._clock.now()).total_seconds()
            await self._clock.sleep(min(max(left_s, 0.05), 60.0))  # the wall clock may be changed
        self._fast.restart_ages()
        self._open = True

    async def _wait_closed(self) -> None:
        while self._is_open():
            session = self._calendar.current(self._clock.now())
            left_s = REPLAN_INTERVAL_S
            if session is not None and not self._config.always_open:
                left_s = (session.closes_at - self._clock.now()).total_seconds()
            await self._clock.sleep(min(max(left_s, 0.05), REPLAN_INTERVAL_S))
        self._open = False

    def _is_open(self) -> bool:
        return self._config.always_open or self._calendar.current(self._clock.now()) is not None
