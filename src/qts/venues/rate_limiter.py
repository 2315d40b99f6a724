"""Rate limiter of one key: no window is exceeded at the venue, whatever the network does.

A request counts from its grant until a full window after its reply. The venue receives it at some
moment in between, so however late it arrives, no window as the venue counts it exceeds its limit:
take the last grant among the requests of one such window; at that moment all the others still
counted here.

    try_acquire ── in flight ── release ── in the log until the window has passed
         ▲                                        │
    waiters, by priority  ◀── timer for the moment the log has capacity

`SlidingWindows` counts, `AdaptiveRate` slows down when the venue throttles, `UsageLog` persists
the count across restarts; `RateLimiter` combines them and queues the waiters.

For one event loop: every method is called on it, `remaining` on any thread. `try_acquire` never
waits.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from qts.domain import Clock, OperationError
from qts.venues.config import MINUTE_NS, SECOND_NS, RateLimitConfig, RequestPriority
from qts.venues.usage import NEVER, UNSYNCED_S, SlidingWindows, UsageLog

GROW_NS = 10 * SECOND_NS
MAX_PAUSE_S = 60.0


class AdaptiveRate:
    """Request rate: half on throttling, one more after ten clean seconds.

    A pure state machine; timestamps are nanoseconds of a monotonic clock.

    At one request a second the rate cannot be halved; pauses that double replace it, and start
    again at one second after ten clean seconds.
    """

    def __init__(self, per_second: int, now: int) -> None:
        self._full = self.rate = per_second
        self.slowed = False
        self._cut_ns = self._grown_ns = now
        self._pauses = 0
        self.paused_until_ns = 0
        self.throttled = 0

    def on_throttled(self, now: int, retry_after_s: float | None = None) -> None:
        """Cut the rate; replies of one second count once, they concern the same rate."""
        self.throttled += 1
        fresh = self.throttled == 1 or now - self._cut_ns >= SECOND_NS
        if fresh and self.rate == 1:
            if now - max(self._cut_ns, self.paused_until_ns) >= GROW_NS:
                self._pauses = 0
            self._pauses += 1
            retry_after_s = max(retry_after_s or 0.0, min(2.0 ** (self._pauses - 1), MAX_PAUSE_S))
        if fresh:
            self._cut_ns = self._grown_ns = now
            self.rate = max(1, self.rate // 2)
            self.slowed = self.rate < self._full
        if retry_after_s:
            self.pause_for(now, retry_after_s)

    def pause_for(self, now: int, seconds: float) -> None:
        self.paused_until_ns = max(self.paused_until_ns, now + round(seconds * 1e9))

    def try_grow(self, now: int) -> bool:
        """Raise the rate for the clean time that has passed; return whether it changed."""
        if not self.slowed or now - self._grown_ns < GROW_NS:
            return False
        steps = (now - self._grown_ns) // GROW_NS
        self._grown_ns += steps * GROW_NS
        self.rate = min(self._full, self.rate + steps)
        self.slowed = self.rate < self._full
        self._pauses = 0
        return True


NORMAL = int(RequestPriority.NORMAL)
LEASE = 16  # grants covered by one write to the usage log


class RateLimiterStatus(msgspec.Struct, frozen=True):
    """Figures of a rate limiter."""

    used_second: int
    used_minute: int
    used_day: int
    left_day: int
    rate_per_s: int
    granted: int
    refused: int
    waiting: int


class Permit:
    """One granted request, held while the context is entered."""

    __slots__ = ("_limiter", "_priority")

    def __init__(self, limiter: RateLimiter, priority: RequestPriority) -> None:
        self._limiter = limiter
        self._priority = priority

    async def __aenter__(self) -> None:
        limiter, priority = self._limiter, self._priority
        if limiter._waiting or not limiter.try_acquire(priority):  # fast path: no coroutine
            await limiter.acquire(priority)

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release()


class RateLimiter:
    """Grants the requests of one key, by priority, then in order of arrival."""

    def __init__(
        self, limits: RateLimitConfig, clock: Clock, usage_log: UsageLog | None = None
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._now_ns = clock.monotonic_ns
        self._usage_log = usage_log
        self._windows = SlidingWindows(limits, clock)
        self._adaptive = AdaptiveRate(limits.per_second, clock.monotonic_ns())
        self._granted = self._leased = 0
        self._lease = max(1, min(LEASE, limits.per_second // 2))
        self._pace_ns = self._paced_at_ns = 0
        self._waiters: tuple[deque[asyncio.Future[None]], ...] = tuple(
            deque() for _ in RequestPriority
        )
        self._waiting = 0
        self._timer: asyncio.Task[None] | None = None
        self._timer_ns = 0
        if usage_log is not None:
            unsynced = [(0, UNSYNCED_S * limits.per_second)] if usage_log.rebooted else []
            self._windows.restore([*usage_log.history, *unsynced])
        self._started = self._windows.done

    def try_acquire(self, priority: RequestPriority) -> bool:
        """Take a request now or return False; each one taken must be released."""
        now = self._now_ns()
        if self._opens_ns(priority, now) > now:
            return False
        if self._usage_log is not None and self._granted == self._leased:
            self._write_lease(self._usage_log, self._granted + self._lease)
            self._leased += self._lease
        self._granted += 1
        self._windows.in_flight += 1
        if priority == NORMAL and self._pace_ns:
            self._paced_at_ns = max(self._paced_at_ns, now - SECOND_NS) + self._pace_ns
        return True

    def release(self) -> None:
        """Complete a request: its reply came, or never will."""
        self._windows.complete(self._now_ns())
        if self._waiting:
            self._pump()

    async def acquire(self, priority: RequestPriority) -> None:
        """Wait for a request, which must be released."""
        ahead = self._waiting and any(self._waiters[: priority + 1])
        if not ahead and self.try_acquire(priority):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[priority].append(waiter)
        self._waiting += 1
        self._pump()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()  # granted in the same turn of the loop
            raise

    def request(self, priority: RequestPriority) -> Permit:
        """Return a context that waits for a request, and completes it at its end."""
        return Permit(self, priority)

    def on_throttled(self, retry_after_s: float | None = None) -> None:
        """Halve the rate, and pause for as long as the venue named."""
        self._adaptive.on_throttled(self._clock.monotonic_ns(), retry_after_s)
        self._windows.set_rate(self._adaptive.rate)

    def pause_for(self, seconds: float) -> None:
        """Grant nothing for `seconds`: the venue has counted more requests than we have."""
        self._adaptive.pause_for(self._clock.monotonic_ns(), seconds)

    def pace(self, per_second: float | None) -> None:
        """Spread NORMAL requests evenly at this rate; None: as fast as the windows allow."""
        self._pace_ns = round(SECOND_NS / per_second) if per_second else 0
        now = self._clock.monotonic_ns()
        # A delay from an earlier, slower pace no longer applies.
        self._paced_at_ns = max(min(self._paced_at_ns, now + self._pace_ns), now - SECOND_NS)
        if self._waiting:
            self._pump()

    def reserve_watched(self, per_second: float) -> None:
        """Let bursts and scans leave this many requests a second to watched symbols."""
        self._windows.reserve_watched(per_second)
        if self._waiting:
            self._pump()

    def skip_pace(self) -> None:
        """Allow one NORMAL request outside of the pace, after one without a result."""
        self._paced_at_ns -= self._pace_ns
        if self._waiting:
            self._pump()

    def remaining_within(self, seconds: float) -> int:
        """Return how many requests the day allows in the next `seconds`."""
        return self._windows.remaining_within(seconds)

    def remaining(self) -> dict[str, int]:
        """Return how many requests each window allows now; none during a pause."""
        now = self._now_ns()
        found = self._windows.remaining(now)
        return dict.fromkeys(found, 0) if now < self._adaptive.paused_until_ns else found

    def status(self) -> RateLimiterStatus:
        now, left = self._clock.monotonic_ns(), self.remaining_within(0.0)
        return RateLimiterStatus(
            used_second=self._windows.used(SECOND_NS, now),
            used_minute=self._windows.used(MINUTE_NS, now),
            used_day=self.limits.per_day - left,
            left_day=left,
            rate_per_s=self._adaptive.rate,
            granted=self._granted,
            refused=self._adaptive.throttled,
            waiting=self._waiting,
        )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._usage_log is not None:
            # An orderly end returns what was leased and not granted.
            self._write_lease(self._usage_log, self._granted)
            self._usage_log.close()

    def _write_lease(self, usage_log: UsageLog, upto: int) -> None:
        usage_log.lease(self._windows.done - self._started, upto)

    def _opens_ns(self, priority: int, now: int) -> int:
        """Return when a request of this priority can be granted."""
        adaptive = self._adaptive
        if adaptive.slowed and adaptive.try_grow(now):
            self._windows.set_rate(adaptive.rate)
        opens = self._windows.opens_ns(priority, now)
        if opens < adaptive.paused_until_ns:
            opens = adaptive.paused_until_ns
        if priority == NORMAL and self._pace_ns and opens < self._paced_at_ns:
            opens = self._paced_at_ns
        return opens

    def _pump(self) -> None:
        """Grant what is possible now, most urgent first; set the timer for the next one."""
        now = self._clock.monotonic_ns()
        wake = NEVER
        for priority in RequestPriority:
            queue = self._waiters[priority]
            while queue and (queue[0].done() or self._admit(queue[0], priority)):
                queue.popleft()
                self._waiting -= 1
            if queue:
                wake = min(wake, self._opens_ns(priority, now))
        self._wake_at(wake, now)

    def _admit(self, waiter: asyncio.Future[None], priority: RequestPriority) -> bool:
        try:
            granted = self.try_acquire(priority)
        except OperationError as error:  # from the usage log: nothing was granted
            waiter.set_exception(error)
            return True
        if granted:
            waiter.set_result(None)
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
                self._wake((moment - now) / 1e9), name="rate-limiter"
            )

    async def _wake(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._timer = None
        self._pump()
