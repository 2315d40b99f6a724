"""One request budget per key: every window holds at the venue, whatever the network does.

A request counts from its grant until a full window after its reply. The venue saw it at some
moment in between, so however late it arrived, no window as the venue counts it is ever above
its limit: take the last grant among the requests of one such window; when it was given, all the
others still counted here.

    try_acquire ── in flight ── release ── in the log until the window has passed
         ▲                                        │
    waiters, by priority  ◀── timer at the moment the log makes room

`Windows` counts, `Throttle` slows down when the venue refuses, `Ledger` remembers across lives;
here they are asked together, and whoever has to wait is kept in line.

For one event loop: every method is called on it. `try_acquire` never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from qts.domain import Clock, OperationError
from qts.venues.ratelimit.adaptive_rate import AdaptiveRate
from qts.venues.ratelimit.limits import MINUTE_NS, SECOND_NS, RateLimitConfig, RequestPriority
from qts.venues.ratelimit.usage_log import LOST_S, UsageLog
from qts.venues.ratelimit.windows import NEVER, SlidingWindows

LEASE = 16  # grants covered by one write to the ledger


class RateLimiterStatus(msgspec.Struct, frozen=True):
    """The budget as the owner sees it."""

    used_second: int
    used_minute: int
    used_day: int
    left_day: int
    rate_per_s: int
    granted: int
    refused: int
    waiting: int


class Permit:
    """Holds one request of a budget while it is entered."""

    __slots__ = ("_budget", "_priority")

    def __init__(self, budget: RateLimiter, priority: RequestPriority) -> None:
        self._budget = budget
        self._priority = priority

    async def __aenter__(self) -> None:
        budget, priority = self._budget, self._priority
        if budget._waiting or not budget.try_acquire(priority):  # the usual case at once
            await budget.acquire(priority)

    async def __aexit__(self, *_: object) -> None:
        self._budget.release()


class RateLimiter:
    """Grants requests of one key; `request` waits for its turn."""

    def __init__(
        self, limits: RateLimitConfig, clock: Clock, ledger: UsageLog | None = None
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._now_ns = clock.monotonic_ns
        self._ledger = ledger
        self._windows = SlidingWindows(limits, clock)
        self._throttle = AdaptiveRate(limits.per_second, clock.monotonic_ns())
        self._granted = self._leased = 0
        self._lease = max(1, min(LEASE, limits.per_second // 2))
        self._pace_ns = self._paced_at_ns = 0
        self._waiters: tuple[deque[asyncio.Future[None]], ...] = tuple(
            deque() for _ in RequestPriority
        )
        self._waiting = 0
        self._timer: asyncio.Task[None] | None = None
        self._timer_ns = 0
        if ledger is not None:
            lost = [(0, LOST_S * limits.per_second)] if ledger.rebooted else []
            self._windows.remember([*ledger.past, *lost])
        self._started = self._windows.done

    # -- asking

    def try_acquire(self, priority: RequestPriority) -> bool:
        """Take a request now, or answer False; each one taken must be released."""
        now = self._now_ns()
        if self._opens_ns(priority, now) > now:
            return False
        if self._ledger is not None and self._granted == self._leased:
            self._write_lease(self._ledger, self._granted + self._lease)
            self._leased += self._lease
        self._granted += 1
        self._windows.in_flight += 1
        if priority == 3 and self._pace_ns:
            self._paced_at_ns = max(self._paced_at_ns, now - SECOND_NS) + self._pace_ns
        return True

    def release(self) -> None:
        """The reply has come, or never will: from now on the request ages."""
        self._windows.answered(self._now_ns())
        if self._waiting:
            self._pump()

    async def acquire(self, priority: RequestPriority) -> None:
        """Wait for a request: those of higher priority first, then in the order of asking."""
        ahead = self._waiting and any(self._waiters[: priority + 1])
        if not ahead and self.try_acquire(priority):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[priority].append(turn)
        self._waiting += 1
        self._pump()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # granted in the very moment of giving up
            raise

    def request(self, priority: RequestPriority) -> Permit:
        """One request, for `async with`: wait for it, make it inside, give it back."""
        return Permit(self, priority)

    # -- telling

    def on_throttled(self, retry_after_s: float | None = None) -> None:
        """The venue said it was too much: half the rate at once, and the pause it asked for."""
        self._throttle.refused(self._clock.monotonic_ns(), retry_after_s)
        self._windows.set_rate(self._throttle.rate)

    def pause_for(self, seconds: float) -> None:
        """Grant nothing for a while: the venue has counted more than we have."""
        self._throttle.hold(self._clock.monotonic_ns(), seconds)

    def pace(self, per_second: float | None) -> None:
        """Spread NORMAL requests evenly at this rate; None: as fast as the windows allow."""
        self._pace_ns = round(SECOND_NS / per_second) if per_second else 0
        now = self._clock.monotonic_ns()
        # What an earlier, slower pace put off is not waited for.
        self._paced_at_ns = max(min(self._paced_at_ns, now + self._pace_ns), now - SECOND_NS)
        if self._waiting:
            self._pump()

    def skip_pace(self) -> None:
        """A paced request brought nothing: another may follow without waiting for its pace."""
        self._paced_at_ns -= self._pace_ns
        if self._waiting:
            self._pump()

    def remaining_within(self, seconds: float) -> int:
        """Requests the day still allows from now until so many seconds from now."""
        return self._windows.left_by(seconds)

    @property
    def refusals(self) -> int:
        return self._throttle.refusals

    def state(self) -> RateLimiterStatus:
        now, left = self._clock.monotonic_ns(), self.remaining_within(0.0)
        return RateLimiterStatus(
            used_second=self._windows.used(SECOND_NS, now),
            used_minute=self._windows.used(MINUTE_NS, now),
            used_day=self.limits.per_day - left,
            left_day=left,
            rate_per_s=self._throttle.rate,
            granted=self._granted,
            refused=self.refusals,
            waiting=self._waiting,
        )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ledger is not None:
            # What was leased and not granted is given back: this end is no crash.
            self._write_lease(self._ledger, self._granted)
            self._ledger.close()

    def _write_lease(self, ledger: UsageLog, upto: int) -> None:
        ledger.lease(self._windows.done - self._started, upto)

    # -- waiting

    def _opens_ns(self, priority: int, now: int) -> int:
        """When a request of this priority can go."""
        throttle = self._throttle
        if throttle.slowed and throttle.grew(now):
            self._windows.set_rate(throttle.rate)
        opens = self._windows.opens_ns(priority, now)
        if opens < throttle.paused_until_ns:
            opens = throttle.paused_until_ns
        if priority == 3 and self._pace_ns and opens < self._paced_at_ns:
            opens = self._paced_at_ns
        return opens

    def _pump(self) -> None:
        """Grant whoever can go now, the most urgent first; wake again when the next one can."""
        now = self._clock.monotonic_ns()
        wake = NEVER
        for priority in RequestPriority:
            line = self._waiters[priority]
            while line and (line[0].done() or self._admit(line[0], priority)):
                line.popleft()
                self._waiting -= 1
            if line:
                wake = min(wake, self._opens_ns(priority, now))
        self._wake_at(wake, now)

    def _admit(self, turn: asyncio.Future[None], priority: RequestPriority) -> bool:
        try:
            granted = self.try_acquire(priority)
        except (
            OperationError
        ) as error:  # the ledger: whoever asked is told, and nothing was granted
            turn.set_exception(error)
            return True
        if granted:
            turn.set_result(None)
        return granted

    def _wake_at(self, moment: int, now: int) -> None:
        if self._timer is not None:
            if self._timer_ns == moment:
                return
            self._timer.cancel()
            self._timer = None
        if moment < NEVER:
            self._timer_ns = moment
            self._timer = asyncio.get_running_loop().create_task(
                self._wake((moment - now) / 1e9), name="budget"
            )

    async def _wake(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._timer = None
        self._pump()
