"""Asks for all symbols in turn, and once a second for those that move, inside the key's budget.

    scan lane    one request waits in the budget (NORMAL, paced by the plan) ──┐ granted: choose
    burst lane   one request waits in the budget (BURST), once a second      ──┘ the symbols now

Each lane has one request in line, so whatever is granted goes to the most urgent lane, and its
symbols are chosen only then. A batch is asked for once at a time; one that is refused or lost is
first in line for the next grant. The plan is made anew every minute, and when the market opens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from qts import telemetry
from qts.domain import Clock, Failed
from qts.feed.calendar import Calendar
from qts.feed.config import FeedConfig
from qts.feed.intake import Intake
from qts.feed.planner import Demand, Plan, plan
from qts.feed.source import Source, Stream
from qts.venues import Budget, Priority, Quote, Rejected, Throttled

REPLAN_S = 60.0
BURST_EVERY_S = 1.0
FULL_DAY_S = 6.5 * 3600
_RETRY_WAIT_S = 0.5  # after a lost reply: the network needs a breath
_RETRIES = 3  # at once; after that a batch waits for its turn, so that it cannot stop the others

Chosen = tuple[Sequence[str], Callable[[bool], None]]  # the symbols, and who is told how it went

log = telemetry.logger("feed")


class PollerState(msgspec.Struct, frozen=True):
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
        source: Source,
        budget: Budget,
        intake: Intake,
        clock: Clock,
        symbols: Sequence[str],
        config: FeedConfig,
    ) -> None:
        self._source = source
        self._budget = budget
        self._intake = intake
        self._clock = clock
        self._config = config
        self._calendar = Calendar(config.calendar_overrides, config.after_market)
        self._symbols = list(symbols)
        size = source.per_call
        self._batches = [self._symbols[n : n + size] for n in range(0, len(symbols), size)]
        self._again: deque[int] = deque()
        self._failures: dict[int, int] = {}
        self._flying: set[int] = set()
        self._landed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] | None = None
        self._next = self._scans = self.polls = self.failed = self.refused = 0
        self._scan_began_ns, self._last_scan_s = clock.monotonic_ns(), 0.0
        self._open = False
        self._stream: Stream | None = None
        self._streamed: set[str] = set()
        self.plan = self.make_plan()

    @property
    def calendar(self) -> Calendar:
        return self._calendar

    def use_stream(self, stream: Stream) -> None:
        """Real ticks for symbols in a burst, while the stream lives and has room."""
        self._stream = stream

    def take(self, quote: Quote) -> None:
        """A quote from anywhere: a poll's, or a stream's."""
        self._intake.take(quote, self._clock.monotonic_ns() / 1e9, self._clock.now())

    def make_plan(self) -> Plan:
        """For what is left of today, or for a whole day when the market is closed."""
        left_s = 0.0 if self._config.always_open else self._calendar.seconds_left(self._clock.now())
        left_s = left_s or FULL_DAY_S
        demand = Demand(
            symbols=max(1, len(self._symbols)),
            per_call=self._source.per_call,
            seconds_left=left_s,
            day_left=self._budget.left_by(left_s),
            asked_s=self._config.interval_s,
            bursts=self._config.bursts,
            burst_s=self._config.burst_s,
        )
        return plan(self._budget.limits, demand)

    def state(self) -> PollerState:
        return PollerState(
            scans=self._scans,
            position=self._next,
            batches=len(self._batches),
            last_scan_s=round(self._last_scan_s, 3),
            polls=self.polls,
            failed=self.failed,
            refused=self.refused,
            in_flight=len(self._flying),
            bursts=self._intake.bursts.symbols,
            open=self._open,
        )

    async def run(self) -> None:
        """Until cancelled; polls only while the market is open. Ends by an error that stays."""
        self._broken = asyncio.get_running_loop().create_future()
        try:
            while True:
                await self._until_open()
                await self._poll_until_closed()
        finally:
            await self._stop()

    async def _poll_until_closed(self) -> None:
        assert self._broken is not None  # noqa: S101 - run has made it
        works = (self._scan(), self._burst(), self._keep_planned(), self._until_closed())
        lanes = {asyncio.ensure_future(work) for work in (*works, asyncio.shield(self._broken))}
        try:
            done, _ = await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
            for lane in done:
                lane.result()
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.wait(lanes)

    # -- lanes

    async def _scan(self) -> None:
        self._scan_began_ns = self._clock.monotonic_ns()
        while True:
            while len(self._flying) >= len(self._batches):  # for ever where there are no symbols
                self._landed.clear()
                await self._landed.wait()
            await self._line_up(self._choose_batch, Priority.NORMAL)

    async def _burst(self) -> None:
        """Once a second by the clock, not a second after the reply."""
        due_ns = self._clock.monotonic_ns()
        offered: deque[str] = deque()
        busy: set[str] = set()
        while True:
            if not offered:
                due_ns = max(due_ns, self._clock.monotonic_ns() - round(BURST_EVERY_S * 1e9))
                await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)
                due_ns += round(BURST_EVERY_S * 1e9)
                self._settle_bursts()
                bursts = self._intake.bursts.symbols
                offered.extend(s for s in bursts if s not in self._streamed and s not in busy)
            else:
                await self._line_up(self._choose_bursts(offered, busy), Priority.BURST)

    async def _keep_planned(self) -> None:
        while True:
            self._replan()
            await self._clock.sleep(REPLAN_S)

    # -- one request

    async def _line_up(self, choose: Callable[[], Chosen], priority: Priority) -> None:
        """Put one request in line; comes back when it was granted, not when it was answered."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._request(choose, priority, granted))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.done() or granted.cancelled():
                task.cancel()
            raise

    async def _request(
        self,
        choose: Callable[[], Chosen],
        priority: Priority,
        granted: asyncio.Future[None],
    ) -> None:
        done: Callable[[bool], None] = _nothing

        def chosen() -> Sequence[str]:
            nonlocal done
            symbols, done = choose()
            _settle(granted)
            return symbols

        good = False
        try:
            for quote in await self._source.quotes(chosen, priority):
                self.take(quote)
            good = True
            self.polls += 1
        except Throttled:
            self.refused += 1
        except Failed as error:
            self.failed += 1
            good = isinstance(error, Rejected)  # asking again at once would change nothing
            if due := telemetry.every(10.0, "poll failed"):
                log.warning("a poll failed", reason=str(error), **due)
            await self._clock.sleep(_RETRY_WAIT_S)
        finally:
            done(good)
            _settle(granted)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error nobody expected ends the poller: wrong keys, or a bug."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    # -- choosing

    def _choose_batch(self) -> Chosen:
        number = self._again.popleft() if self._again else self._turn()
        self._flying.add(number)

        def done(good: bool) -> None:
            self._flying.discard(number)
            self._landed.set()
            failures = 0 if good else self._failures.get(number, 0) + 1
            self._failures[number] = failures
            if failures and failures % (_RETRIES + 1):
                self._again.append(number)
                self._budget.repeat()

        return self._batches[number], done

    def _turn(self) -> int:
        """The next batch in the round that is not under way."""
        while True:
            number = self._next
            self._next = (number + 1) % len(self._batches)
            if self._next == 0:
                now = self._clock.monotonic_ns()
                self._last_scan_s = (now - self._scan_began_ns) / 1e9
                self._scan_began_ns = now
                self._scans += 1
            if number not in self._flying and number not in self._again:
                return number

    def _choose_bursts(self, offered: deque[str], busy: set[str]) -> Callable[[], Chosen]:
        def choose() -> Chosen:
            size = min(self._source.per_call, len(offered))
            symbols = [offered.popleft() for _ in range(size)]
            busy.update(symbols)
            return symbols, lambda _good: busy.difference_update(symbols)

        return choose

    def _settle_bursts(self) -> None:
        """End what is over; give to the stream what it can carry, for it costs no requests."""
        bursts, live = self._intake.bursts, self._stream is not None and self._stream.live
        bursts.end(self._clock.monotonic_ns() / 1e9)
        bursts.resize(self._config.bursts if live else self.plan.bursts)
        if self._stream is None:
            return
        for symbol in [each for each in self._streamed if each not in bursts]:
            self._stream.unwatch(symbol)
            self._streamed.discard(symbol)
        if not live:
            for symbol in self._streamed:
                self._stream.unwatch(symbol)
            self._streamed.clear()  # polled again until it is back
            return
        for symbol in bursts.symbols:
            if symbol not in self._streamed and self._stream.free > 0:
                self._stream.watch(symbol)
                self._streamed.add(symbol)

    # -- planning

    def _replan(self) -> None:
        made = self.make_plan()
        changed = abs(made.interval_s - self.plan.interval_s) > 0.05 * self.plan.interval_s
        self.plan = made
        self._budget.pace(made.rate_per_s or 1 / FULL_DAY_S)
        self._intake.interval_ms["normal"] = made.interval_s * 1e3
        # A slow scan needs a longer memory, or nothing could ever be compared.
        self._intake.cache.ttl_s = max(self._config.cache_ttl_s, 2 * made.interval_s)
        self._intake.cache.clean(self._clock.monotonic_ns() / 1e9)
        if changed:
            log.info("the scan was planned anew", plan=made.sentence, bound=made.bound)

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

    async def _stop(self) -> None:
        self._open = False
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._broken is not None:
            self._broken.cancel()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing(_good: bool) -> None:
    """No symbols were chosen yet, so none need to be given back."""
