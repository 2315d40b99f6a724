"""One request budget per key: every window holds at the venue, whatever the network does.

A request counts from its grant until a full window after its reply. The venue saw it at some
moment in between, so however late it arrived, no window as the venue counts it is ever above
its limit: take the last grant among the requests of one such window; when it was given, all the
others still counted here.

    try_acquire ── in flight ── release ── in the log until the window has passed
         ▲                                        │
    waiters, by priority  ◀── timer at the moment the log makes room

One log of completion times serves all windows: a window of limit L has room when the request
L - in_flight places back in the log is older than the window. That is O(1) for each. Lower
priorities see lower limits (`ceilings`), so those above them find room. A refusal by the venue
halves the rate per second; it grows by one for every ten seconds without another.

For one event loop: every method is called on it. `try_acquire` never waits.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta, timezone

import msgspec

from qts.domain import Clock, Failed
from qts.venues.ledger import LOST_S, Ledger
from qts.venues.limits import (
    DAY_NS,
    MINUTE_NS,
    SECOND_NS,
    LimitsConfig,
    Priority,
    ceilings,
)

LEASE = 16  # grants covered by one write to the ledger
GROW_NS = 10 * SECOND_NS
PAUSE_MAX_S = 60.0
SEOUL = timezone(timedelta(hours=9))


class BudgetState(msgspec.Struct, frozen=True):
    """The budget as the owner sees it."""

    used_second: int
    used_minute: int
    used_day: int
    left_day: int
    rate_per_s: int
    granted: int
    refused: int
    waiting: int


class Budget:
    """Grants requests of one key; `request` waits for its turn."""

    def __init__(self, limits: LimitsConfig, clock: Clock, ledger: Ledger | None = None) -> None:
        self.limits = limits
        self._clock = clock
        self._ledger = ledger
        self._size = max(limits.per_second, limits.per_minute, limits.per_day)
        self._log = array("q", bytes(8 * self._size))
        self._done = self._in_flight = self._granted = self._leased = 0
        self._lease = max(1, min(LEASE, limits.per_second // 2))
        self._rate = limits.per_second
        self._cut_ns = self._grown_ns = clock.monotonic_ns()
        self._paused_until_ns = 0
        self._pauses = 0
        self._pace_ns = 0
        self._paced_at_ns = 0
        self._day_used, self._day_ends_ns = 0, self._next_midnight_ns()
        self._waiters: tuple[deque[asyncio.Future[None]], ...] = tuple(deque() for _ in Priority)
        self._timer: asyncio.Task[None] | None = None
        self._timer_ns = 0
        self.refusals = 0
        self._build_windows()
        if ledger is not None:
            self._remember(ledger)
        self._started = self._done

    # -- asking

    def try_acquire(self, priority: Priority) -> bool:
        """Take a request now, or answer False; each one taken must be released."""
        now = self._clock.monotonic_ns()
        if now < self._paused_until_ns or self._opens_ns(priority, now) > now:
            return False
        if self._ledger is not None and self._granted == self._leased:
            self._ledger.lease(self._done - self._started, self._granted + self._lease)
            self._leased += self._lease
        self._granted += 1
        self._in_flight += 1
        if priority == 3 and self._pace_ns:
            self._paced_at_ns = max(self._paced_at_ns, now - SECOND_NS) + self._pace_ns
        return True

    def release(self) -> None:
        """The reply has come, or never will: from now on the request ages."""
        self._log[self._done % self._size] = self._clock.monotonic_ns()
        self._done += 1
        self._in_flight -= 1
        self._day_used += 1
        if any(self._waiters):
            self._pump()

    async def acquire(self, priority: Priority) -> None:
        """Wait for a request: those of higher priority first, then in the order of asking."""
        if not any(self._waiters[: priority + 1]) and self.try_acquire(priority):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[priority].append(turn)
        self._pump()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # granted in the very moment of giving up
            raise

    @asynccontextmanager
    async def request(self, priority: Priority) -> AsyncIterator[None]:
        """One request: wait for it, make it inside, give it back."""
        await self.acquire(priority)
        try:
            yield
        finally:
            self.release()

    # -- telling

    def refused(self, retry_after_s: float | None = None) -> None:
        """The venue said it was too much: half the rate at once, and the pause it asked for."""
        now = self._clock.monotonic_ns()
        self.refusals += 1
        fresh = self.refusals == 1 or now - self._cut_ns >= SECOND_NS
        if fresh and self._rate == 1:
            self._pauses += 1
            retry_after_s = max(retry_after_s or 0.0, min(2.0 ** (self._pauses - 1), PAUSE_MAX_S))
        if fresh:
            self._cut_ns = self._grown_ns = now
            self._rate = max(1, self._rate // 2)
            self._build_windows()
        if retry_after_s:
            self.hold(retry_after_s)

    def hold(self, seconds: float) -> None:
        """Grant nothing for a while: the venue has counted more than we have."""
        until = self._clock.monotonic_ns() + round(seconds * 1e9)
        self._paused_until_ns = max(self._paused_until_ns, until)

    def pace(self, per_second: float | None) -> None:
        """Spread NORMAL requests evenly at this rate; None: as fast as the windows allow."""
        self._pace_ns = round(SECOND_NS / per_second) if per_second else 0
        self._paced_at_ns = max(self._paced_at_ns, self._clock.monotonic_ns() - SECOND_NS)
        if any(self._waiters):
            self._pump()

    def repeat(self) -> None:
        """A paced request brought nothing: another may follow without waiting for its pace."""
        self._paced_at_ns -= self._pace_ns
        if any(self._waiters):
            self._pump()

    def left_by(self, seconds: float) -> int:
        """Requests the day still allows from now until so many seconds from now."""
        now = self._clock.monotonic_ns()
        if self.limits.day == "calendar":
            self._roll_day(now)
            used = self._day_used
        else:
            used = self._count_since(now + round(seconds * 1e9) - DAY_NS)
        return max(0, self.limits.per_day - used - self._in_flight)

    def state(self) -> BudgetState:
        now = self._clock.monotonic_ns()
        left = self.left_by(0.0)
        return BudgetState(
            used_second=self._count_since(now - SECOND_NS) + self._in_flight,
            used_minute=self._count_since(now - MINUTE_NS) + self._in_flight,
            used_day=self.limits.per_day - left,
            left_day=left,
            rate_per_s=self._rate,
            granted=self._granted,
            refused=self.refusals,
            waiting=sum(len(line) for line in self._waiters),
        )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ledger is not None:
            # What was leased and not granted is given back: this end is no crash.
            self._ledger.lease(self._done - self._started, self._granted)
            self._ledger.close()

    # -- windows

    def _opens_ns(self, priority: int, now: int) -> int:
        """When all windows have room: now or earlier, a later moment, or never before a release."""
        if now - self._grown_ns >= GROW_NS and self._rate < self.limits.per_second:
            self._grow(now)
        opens = now
        done, size, log, in_flight = self._done, self._size, self._log, self._in_flight
        for ceiling, span in self._windows[priority]:
            back = ceiling - in_flight
            if back <= 0:
                return _NEVER
            if back <= done:
                free = log[(done - back) % size] + span
                if free >= opens:
                    opens = free + 1
        if priority == 3 and self._pace_ns and self._paced_at_ns > opens:
            opens = self._paced_at_ns
        if self._calendar is not None:
            self._roll_day(now)
            if self._day_used + in_flight >= self._calendar[priority]:
                opens = max(opens, self._day_ends_ns)
        return opens

    def _build_windows(self) -> None:
        spans = [(self._rate, SECOND_NS), (self.limits.per_minute, MINUTE_NS)]
        self._calendar: tuple[int, ...] | None = None
        if self.limits.day == "rolling":
            spans.append((self.limits.per_day, DAY_NS))
        else:
            self._calendar = ceilings(self.limits, self.limits.per_day, DAY_NS)
        each = [(ceilings(self.limits, limit, span), span) for limit, span in spans]
        self._windows = [[(tops[p], span) for tops, span in each] for p in Priority]

    def _grow(self, now: int) -> None:
        steps = (now - self._grown_ns) // GROW_NS
        self._grown_ns += steps * GROW_NS
        self._rate = min(self.limits.per_second, self._rate + steps)
        self._pauses = 0
        self._build_windows()

    def _count_since(self, moment: int) -> int:
        """Completions after a moment; the log is in order, so by halving."""
        low, high = max(0, self._done - self._size), self._done
        while low < high:
            middle = (low + high) // 2
            if self._log[middle % self._size] < moment:
                low = middle + 1
            else:
                high = middle
        return self._done - low

    def _roll_day(self, now: int) -> None:
        if now >= self._day_ends_ns:
            self._day_used = 0
            self._day_ends_ns = self._next_midnight_ns()

    def _next_midnight_ns(self) -> int:
        """On the monotonic side: a wall clock set forward must not give a second day's quota."""
        wall = self._clock.now().astimezone(SEOUL)
        passed = timedelta(hours=wall.hour, minutes=wall.minute, seconds=wall.second)
        left = timedelta(days=1) - passed - timedelta(microseconds=wall.microsecond)
        return self._clock.monotonic_ns() + round(left.total_seconds() * 1e9)

    def _remember(self, ledger: Ledger) -> None:
        now = self._clock.monotonic_ns()
        past = list(ledger.past)
        if ledger.rebooted:
            past.append((0, LOST_S * self.limits.per_second))
        midnight_age = now - (self._day_ends_ns - DAY_NS)
        for age, count in sorted(past, reverse=True):
            for _ in range(min(count, self._size)):
                self._log[self._done % self._size] = now - age
                self._done += 1
            self._day_used += count if age <= midnight_age else 0

    # -- waiting

    def _pump(self) -> None:
        """Grant whoever can go now, the most urgent first; wake again when the next one can."""
        now = self._clock.monotonic_ns()
        wake = _NEVER
        for priority in Priority:
            line = self._waiters[priority]
            while line and (line[0].done() or self._admit(line[0], priority)):
                line.popleft()
            if line:
                wake = min(wake, max(self._paused_until_ns, self._opens_ns(priority, now)))
        self._wake_at(wake, now)

    def _admit(self, turn: asyncio.Future[None], priority: Priority) -> bool:
        try:
            granted = self.try_acquire(priority)
        except Failed as error:  # the ledger: whoever asked is told, and nothing was granted
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
        if moment < _NEVER:
            self._timer_ns = moment
            self._timer = asyncio.get_running_loop().create_task(
                self._wake((moment - now) / 1e9), name="budget"
            )

    async def _wake(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._timer = None
        self._pump()


_NEVER = 1 << 62
