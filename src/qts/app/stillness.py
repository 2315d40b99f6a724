"""While an exit is on its way, strategies in processes of their own hold still.

Nothing that trades then waits for a processor that a strategy computes on. They go on when the time
is over, whatever became of the exit. Each further exit gives it anew, but not for ever: where exits
do not end, strategies have their share, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from qts.pipeline import Apart, Runner

HOLD_S = 0.025  # an order has left by then
LONGEST_S = 1.0
REST_S = 0.5  # after the longest


class Stillness:
    def __init__(self, runners: Mapping[str, Runner]) -> None:
        self._runners = runners
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.TimerHandle | None = None
        self._since = self._rests_until = 0.0

    def __call__(self) -> None:
        """From any thread, and at once."""
        apart = [each for each in self._runners.values() if isinstance(each, Apart)]
        if not apart or self._loop.time() < self._rests_until:
            return
        for each in apart:
            each.hold_still()
        self._loop.call_soon_threadsafe(self._for_a_while, apart)

    def _for_a_while(self, held: list[Apart]) -> None:
        now = self._loop.time()
        if self._end is None:
            self._since = now
        elif now >= self._since + LONGEST_S:
            return  # its end is due
        else:
            self._end.cancel()
        ends = min(now + HOLD_S, self._since + LONGEST_S)
        self._end = self._loop.call_at(ends, self._go_on, held)

    def _go_on(self, held: list[Apart]) -> None:
        self._end = None
        now = self._loop.time()
        if now - self._since >= LONGEST_S:
            self._rests_until = now + REST_S
        for each in held:
            each.go_on()
