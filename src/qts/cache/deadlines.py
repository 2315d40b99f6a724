"""Time limits of many calls, watched by one timer.

asyncio.timeout starts and ends a timer of its own each time, and on uvloop that costs as much as
reading four values from their text. Here a call notes its end, and the timer, which is set for
the earliest end known, looks who is over. A call that is over is cancelled as asyncio.timeout does
it: whoever else cancels the task at the same time is not mistaken for the alarm.
"""

from __future__ import annotations

import asyncio
import math

_TICK_S = 0.0005  # half a tick of uvloop's clock: what is due within it is due now


class Deadline:
    """Of one call in one task."""

    __slots__ = ("_cancelled_before", "_task", "ends_at", "rang")

    def __init__(self, ends_at: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit belongs to a task")
        self._task = task
        self._cancelled_before = task.cancelling()
        self.ends_at = ends_at  # by the clock of the loop
        self.rang = False

    def ring(self) -> None:
        self.rang = True
        self._task.cancel()

    def is_cause(self) -> bool:
        """Of the cancellation that has just come up; asked once."""
        return self.rang and self._task.uncancel() <= self._cancelled_before


class DeadlineTimer:
    """For one event loop."""

    def __init__(self) -> None:
        self._limits: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf

    def set(self, ends_at: float) -> Deadline:
        """For the running task, until it is cleared."""
        limit = Deadline(ends_at)
        self._limits.add(limit)
        if ends_at < self._due_at:
            self._wake(ends_at)
        return limit

    def clear(self, limit: Deadline) -> None:
        self._limits.discard(limit)

    def _wake(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = asyncio.get_running_loop().call_at(due_at, self._ring)

    def _ring(self) -> None:
        now = asyncio.get_running_loop().time() + _TICK_S
        self._timer, self._due_at = None, math.inf
        over = [limit for limit in self._limits if limit.ends_at <= now]
        for limit in sorted(over, key=lambda limit: limit.ends_at):
            self._limits.discard(limit)
            limit.ring()
        if self._limits:
            self._wake(min(limit.ends_at for limit in self._limits))
