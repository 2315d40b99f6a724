"""Deadlines of many calls, served by one timer.

asyncio.timeout creates and cancels a timer each time, and on uvloop that costs as much as decoding
four values. Here a call registers its deadline, and a timer, set for the earliest one, cancels the
calls that are due. It cancels as asyncio.timeout does: another cancellation of the task at the same
time is not mistaken for the timeout.
"""

from __future__ import annotations

import asyncio
import math

_CLOCK_TICK_S = 0.0005  # half a tick of uvloop's clock


class Deadline:
    """Deadline of one call in one task."""

    __slots__ = ("_cancelled_before", "_task", "expires_at", "fired")

    def __init__(self, expires_at: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        self._task = task
        self._cancelled_before = task.cancelling()
        self.expires_at = expires_at  # loop time
        self.fired = False

    def fire(self) -> None:
        self.fired = True
        self._task.cancel()

    def is_cause(self) -> bool:
        """Whether the deadline caused the cancellation just caught; call it once."""
        return self.fired and self._task.uncancel() <= self._cancelled_before


class DeadlineTimer:
    """Timer for one event loop."""

    def __init__(self) -> None:
        self._deadlines: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf

    def set(self, expires_at: float) -> Deadline:
        """Register a deadline of the running task until it is cleared."""
        deadline = Deadline(expires_at)
        self._deadlines.add(deadline)
        if expires_at < self._due_at:
            self._schedule(expires_at)
        return deadline

    def clear(self, deadline: Deadline) -> None:
        self._deadlines.discard(deadline)

    def _schedule(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = asyncio.get_running_loop().call_at(due_at, self._expire_due)

    def _expire_due(self) -> None:
        now = asyncio.get_running_loop().time() + _CLOCK_TICK_S
        self._timer, self._due_at = None, math.inf
        due = [deadline for deadline in self._deadlines if deadline.expires_at <= now]
        for deadline in sorted(due, key=lambda deadline: deadline.expires_at):
            self._deadlines.discard(deadline)
            deadline.fire()
        if self._deadlines:
            self._schedule(min(deadline.expires_at for deadline in self._deadlines))
