"""Asks for all symbols in turn, and once a second for those that move, inside the key's budget.

    scan    one request waits in the budget (NORMAL, paced by the plan) ──┐ granted: choose
    watch   one request waits in the budget (BURST), once a second      ──┘ the symbols now

Each lane has one request in line, so whatever is granted goes to the most urgent lane, and its
symbols are chosen only then. A batch is asked for once at a time; one that is refused or lost is
first in line for the next grant. The plan is made anew every minute, and when the market opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from qts import telemetry
from qts.domain import Clock
from qts.feed.burst_poller import BurstPoller
from qts.feed.calendar import TradingCalendar
from qts.feed.config import FeedConfig
from qts.feed.ingest import QuoteIngest
from qts.feed.planner import Demand, ScanPlan, plan_scan
from qts.feed.quote_requests import QuoteRequester
from qts.feed.scan import Scan
from qts.feed.source import QuoteSource, TickStream
from qts.venues import Quote, RateLimiter, RequestPriority

REPLAN_S = 60.0
FULL_DAY_S = 6.5 * 3600

log = telemetry.logger("feed")


class PollerStatus(msgspec.Struct, frozen=True):
    """How the scan goes."""

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
    """`run` it on a loop; all of it happens there."""

    def __init__(
        self,
        source: QuoteSource,
        budget: RateLimiter,
        intake: QuoteIngest,
        clock: Clock,
        symbols: Sequence[str],
        config: FeedConfig,
    ) -> None:
        self._budget = budget
        self._intake = intake
        self._clock = clock
        self._config = config
        self._count, self._per_call = len(symbols), source.per_call
        self._calendar = TradingCalendar(config.calendar_overrides, config.after_market)
        self._asking = QuoteRequester(source, clock, self.take)
        self._scan = Scan(symbols, source.per_call, clock, budget.skip_pace)
        self._watch = BurstPoller(intake.bursts, self._asking, clock, config, source.per_call)
        self._open = False
        self.plan = self.make_plan()

    @property
    def calendar(self) -> TradingCalendar:
        return self._calendar

    def use_stream(self, stream: TickStream) -> None:
        """Real ticks for symbols in a burst, while the stream lives and has room."""
        self._watch.use_stream(stream)

    def take(self, quote: Quote) -> None:
        """A quote from anywhere: a poll's, or a stream's."""
        self._intake.ingest(quote, self._clock.monotonic_ns() / 1e9, self._clock.now())

    def make_plan(self) -> ScanPlan:
        """For what is left of today, or for a whole day when the market is closed."""
        left_s = 0.0 if self._config.always_open else self._calendar.seconds_left(self._clock.now())
        left_s = left_s or FULL_DAY_S
        demand = Demand(
            symbols=max(1, self._count),
            per_call=self._per_call,
            seconds_left=left_s,
            day_left=self._budget.remaining_within(left_s),
            asked_s=self._config.interval_s,
            bursts=self._config.max_bursts,
            burst_s=self._config.burst_s,
        )
        return plan_scan(self._budget.limits, demand)

    def state(self) -> PollerStatus:
        scan, asking = self._scan, self._asking
        return PollerStatus(
            scans=scan.scans,
            position=scan.position,
            batches=len(scan.batches),
            last_scan_s=round(scan.last_s, 3),
            polls=asking.polls,
            failed=asking.failed,
            refused=asking.refused,
            in_flight=scan.in_flight,
            bursts=self._intake.bursts.symbols,
            open=self._open,
        )

    async def run(self) -> None:
        """Until cancelled; polls only while the market is open. Ends by an error that stays."""
        try:
            while True:
                await self._until_open()
                await self._poll_until_closed()
        finally:
            self._open = False
            await self._asking.stop()

    async def _poll_until_closed(self) -> None:
        works = (
            self._asking.wait_fatal(),
            self._scan_all(),
            self._watch.run(),
            self._keep_planned(),
            self._until_closed(),
        )
        lanes = {asyncio.ensure_future(work) for work in works}
        try:
            done, _ = await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
            for lane in done:
                lane.result()
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.wait(lanes)

    async def _scan_all(self) -> None:
        self._scan.begin()
        while True:
            await self._scan.ready()
            await self._asking.enqueue(self._scan.choose, RequestPriority.NORMAL)

    # -- planning

    async def _keep_planned(self) -> None:
        while True:
            self._replan()
            await self._clock.sleep(REPLAN_S)

    def _replan(self) -> None:
        made = self.make_plan()
        changed = abs(made.interval_s - self.plan.interval_s) > 0.05 * self.plan.interval_s
        self.plan = made
        self._budget.pace(made.rate_per_s or 1 / FULL_DAY_S)
        self._watch.apply_plan(made)
        self._intake.interval_ms["normal"] = made.interval_s * 1e3
        # A slow scan needs a longer memory, or nothing could ever be compared.
        self._intake.cache.ttl_s = max(self._config.cache_ttl_s, 2 * made.interval_s)
        self._intake.cache.clean(self._clock.monotonic_ns() / 1e9)
        if changed:
            log.info("the scan was planned anew", plan=made.sentence, bound=made.bound)

    # -- opening hours

    async def _until_open(self) -> None:
        while not self._is_open():
            opens = self._calendar.next_open(self._clock.now()).opens_at
            left_s = (opens - self._clock.now()).total_seconds()
            await self._clock.sleep(min(max(left_s, 0.05), 60.0))  # a wall clock may be set
        self._open = True

    async def _until_closed(self) -> None:
        while self._is_open():
            session = self._calendar.current(self._clock.now())
            left_s = REPLAN_S
            if session is not None and not self._config.always_open:
                left_s = (session.closes_at - self._clock.now()).total_seconds()
            await self._clock.sleep(min(max(left_s, 0.05), REPLAN_S))
        self._open = False

    def _is_open(self) -> bool:
        return self._config.always_open or self._calendar.current(self._clock.now()) is not None
