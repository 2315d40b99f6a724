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
from collections import deque
from collections.abc import Callable, Collection, Sequence

import msgspec

from qts import telemetry
from qts.domain import Clock, OrderBook
from qts.feed.config import FeedConfig
from qts.feed.fast_poller import FastPoller
from qts.feed.ingest import QuoteIngest
from qts.feed.planner import WATCH_INTERVAL_S, Demand, ScanPlan, plan_scan
from qts.feed.requests import BookPoller, Chosen, QuoteRequester, book_interval_s, index_codes
from qts.venues import Calendar, MarketData, Quote, RequestPriority, TickStream

_MAX_RETRIES = 3  # then the batch waits for its turn


class Scan:
    """Symbols in batches of one request; a batch is in flight once at a time."""

    def __init__(
        self, symbols: Sequence[str], per_call: int, clock: Clock, on_retry: Callable[[], None]
    ) -> None:
        """Create the batches; `on_retry` is called for a batch that is retried at once."""
        starts = range(0, len(symbols), per_call)
        self.batches = [list(symbols[start : start + per_call]) for start in starts]
        self._clock = clock
        self._on_retry = on_retry
        self._retries: deque[int] = deque()
        self._failures: dict[int, int] = {}
        self._in_flight: set[int] = set()
        self._finished = asyncio.Event()
        self.position = self.scans = 0
        self.last_s = 0.0
        self._started_ns = clock.monotonic_ns()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def start(self) -> None:
        self._started_ns = self._clock.monotonic_ns()

    async def ready(self) -> None:
        """Wait until a batch is not in flight; forever if there are no symbols."""
        while len(self._in_flight) >= len(self.batches):
            self._finished.clear()
            await self._finished.wait()

    def choose(self) -> Chosen:
        number = self._retries.popleft() if self._retries else self._next()
        self._in_flight.add(number)

        def done(succeeded: bool) -> None:
            self._in_flight.discard(number)
            self._finished.set()
            failures = 0 if succeeded else self._failures.get(number, 0) + 1
            self._failures[number] = failures
            if failures and failures % (_MAX_RETRIES + 1):
                self._retries.append(number)
                self._on_retry()

        return self.batches[number], done

    def _next(self) -> int:
        """Return the next batch of the scan that is not in flight."""
        while True:
            number = self.position
            self.position = (number + 1) % len(self.batches)
            if self.position == 0:
                now = self._clock.monotonic_ns()
                self.last_s = (now - self._started_ns) / 1e9
                self._started_ns = now
                self.scans += 1
            if number not in self._in_flight and number not in self._retries:
                return number


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
        venue: MarketData,
        ingest: QuoteIngest,
        clock: Clock,
        symbols: Sequence[str],
        config: FeedConfig,
    ) -> None:
        self._no_indices = venue.limits.no_indices
        self._limiter = limiter = venue.limiter
        source = venue.source
        self._ingest = ingest
        self._clock = clock
        self._config = config
        self._count, self._per_call = len(symbols), source.per_call
        self._calendar = venue.calendar
        self._requester = QuoteRequester(source, clock, self.on_quote)
        self._scan = Scan(symbols, source.per_call, clock, limiter.skip_pace)
        self._fast = FastPoller(
            ingest.bursts, self._requester, clock, config, source.per_call, self._replan
        )
        interval_s = book_interval_s(limiter.limits.per_second)
        due = self._fast.unstreamed_books
        self._books = BookPoller(source, clock, interval_s, due, self.on_book)
        self._open = False
        self.plan = self.make_plan()

    @property
    def calendar(self) -> Calendar | None:
        """The calendar of the venue; None: its market never closes."""
        return self._calendar

    def attach_stream(self, stream: TickStream) -> None:
        """Use real ticks for watched symbols and bursts while the stream has capacity."""
        self._fast.attach_stream(stream)

    def watch(self, symbols: Sequence[str], on_order: Collection[str] = ()) -> None:
        """Replace the symbols that are held or on order, most important first."""
        self._fast.watch(symbols, on_order)

    def price_age_s(self, symbol: str) -> float | None:
        """Return the age of a watched symbol's price; None outside the trading session."""
        return self._fast.price_age_s(symbol) if self._open else None

    def on_quote(self, quote: Quote) -> None:
        """Ingest a quote of a poll or a stream."""
        at = self._clock.monotonic_ns() / 1e9
        if quote.price > 0:
            self._fast.confirm(quote.symbol, at)
        self._ingest.ingest(quote, at, self._clock.now())

    def on_book(self, book: OrderBook) -> None:
        """Ingest an order book of a poll or a stream."""
        self._ingest.ingest_book(book)

    def make_plan(self) -> ScanPlan:
        """Plan for the rest of today, or for a whole day when the market is closed."""
        calendar = self._open_hours
        left_s = (calendar.seconds_left(self._clock.now()) if calendar else 0.0) or FULL_DAY_S
        polled, streamed, books, streamed_books = self._fast.watched
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
            indices=0 if self._no_indices else len(index_codes(self._config)),
            index_interval_s=self._config.index_interval_s,
            no_indices=self._no_indices,
            books=books,
            streamed_books=streamed_books,
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

    async def run(self, *, watched_only: bool = False) -> None:
        """Poll while the market is open, until cancelled; raise on a permanent error.

        `watched_only`: the symbols that are held or on order, and no scan of the others.
        """
        try:
            while True:
                await self._wait_open()
                await self._poll_until_closed(watched_only)
        finally:
            self._open = False
            await self._requester.stop()

    async def _poll_until_closed(self, watched_only: bool) -> None:
        coroutines = [
            self._requester.wait_fatal(),
            self._fast.run(),
            self._replan_periodically(),
            self._wait_closed(),
        ]
        if not watched_only:
            coroutines += [self._scan_all(), self._books.run()]
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
        self._limiter.reserve_watched(plan.watch_per_s + plan.index_per_s)
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

    @property
    def _open_hours(self) -> Calendar | None:
        """The calendar that applies; None: it is always open, or polled as if it were."""
        return None if self._config.always_open else self._calendar

    async def _wait_open(self) -> None:
        while (calendar := self._open_hours) and calendar.current(self._clock.now()) is None:
            opens = calendar.next_open(self._clock.now()).opens_at
            left_s = (opens - self._clock.now()).total_seconds()
            await self._clock.sleep(min(max(left_s, 0.05), 60.0))  # the wall clock may be changed
        self._fast.restart_ages()
        self._open = True

    async def _wait_closed(self) -> None:
        while True:
            left_s = REPLAN_INTERVAL_S
            if calendar := self._open_hours:
                session = calendar.current(self._clock.now())
                if session is None:
                    break
                left_s = (session.closes_at - self._clock.now()).total_seconds()
            await self._clock.sleep(min(max(left_s, 0.05), REPLAN_INTERVAL_S))
        self._open = False
