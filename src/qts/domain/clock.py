"""Clocks that are passed in, and durations such as `500ms`, `5s`, `2m`, `1h`.

Points in time are timezone-aware UTC datetimes. Durations are measured with `monotonic_ns`, which
wall-clock adjustments do not affect.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from qts.domain.errors import RefusedError


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the wall-clock time in UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary start; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None: ...


def _boot_ns() -> int:
    """Return nanoseconds since the boot; unlike `monotonic_ns`, time asleep counts on Linux."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class TimeLimit:
    """End of a span on two clocks, over when either says so.

    One may be moved by a test, the other counts while the machine sleeps; neither follows the wall
    clock.
    """

    __slots__ = ("_boot_ns", "_monotonic_ns")

    def __init__(self, clock: Clock, seconds: float) -> None:
        span_ns = round(seconds * 1e9)
        self._monotonic_ns = clock.monotonic_ns() + span_ns
        self._boot_ns = _boot_ns() + span_ns

    def move_to(self, other: TimeLimit) -> None:
        self._monotonic_ns, self._boot_ns = other._monotonic_ns, other._boot_ns

    def left_s(self, clock: Clock) -> float:
        """Return the seconds that are left; below 0 when it is over."""
        left_ns = min(self._monotonic_ns - clock.monotonic_ns(), self._boot_ns - _boot_ns())
        return left_ns / 1e9

    def is_over(self, clock: Clock) -> bool:
        return self.left_s(clock) <= 0


class SystemClock:
    """Clock of the operating system."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """Clock that only `advance` moves; sleepers wake in the order of their deadlines.

    `advance` and `sleep` must be called on the same event loop.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 2, tzinfo=UTC)) -> None:
        self._monotonic_ns = 0
        self.set_wall(start)
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        # Computed from one point: adding up steps would lose those below a microsecond.
        return self._wall + timedelta(microseconds=(self._monotonic_ns - self._wall_set_ns) // 1000)

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due_ns = self._monotonic_ns + round(seconds * 1e9)
        heapq.heappush(self._sleepers, (due_ns, next(self._order), waiter))
        await waiter

    async def advance(self, seconds: float) -> None:
        """Move wall and monotonic time forward; run each sleeper at its deadline."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: forward only; see set_wall")
        end_ns = self._monotonic_ns + round(seconds * 1e9)
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end_ns:
            due_ns, _, waiter = heapq.heappop(self._sleepers)
            self._move_to(due_ns)
            if not waiter.done():
                waiter.set_result(None)
                await _settle()
        self._move_to(end_ns)

    def set_wall(self, moment: datetime) -> None:
        """Set the wall clock alone, back or forward, as an operator or NTP may."""
        if moment.tzinfo is None:
            raise ValueError("set_wall needs a datetime with a timezone")
        self._wall = moment.astimezone(UTC)
        self._wall_set_ns = self._monotonic_ns

    def _move_to(self, monotonic_ns: int) -> None:
        self._monotonic_ns = max(self._monotonic_ns, monotonic_ns)  # concurrent advance() calls


async def _settle(rounds: int = 10) -> None:
    """Let woken tasks run until they wait again (bounded: a busy task must not hang the clock)."""
    for _ in range(rounds):
        await asyncio.sleep(0)


_SECONDS = {"ms": (1, 1000), "s": (1, 1), "m": (60, 1), "h": (3600, 1), "d": (86400, 1)}
_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)


def parse_duration(text: str) -> float:
    """Return the seconds of a text such as `90s`; a bare number is seconds.

    >>> parse_duration("500ms"), parse_duration("2m"), parse_duration("5")
    (0.5, 120.0, 5.0)
    """
    found = _FORM.fullmatch(text.strip())
    seconds = 0.0
    if found:
        numerator, denominator = _SECONDS[found[2] or "s"]
        seconds = float(found[1]) * numerator / denominator  # exact, unlike * 0.001
    if not 0 < seconds < float("inf"):
        raise RefusedError(
            f"{text!r} is not a duration; write a positive number and ms, s, m, h or d, as in 90s"
        )
    return seconds
