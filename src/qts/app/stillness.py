"""While an exit is on its way, strategies in processes of their own hold still.

Nothing that trades then waits for a processor that a strategy computes on. They go on when the time
is over, whatever became of the exit; each further exit gives it anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from qts.pipeline import Apart, Runner

HOLD_S = 0.025  # an order has left by then


class Stillness:
    def __init__(self, runners: Mapping[str, Runner]) -> None:
        self._runners = runners
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        """From any thread, and at once."""
        apart = [each for each in self._runners.values() if isinstance(each, Apart)]
        if not apart:
            return
        for each in apart:
            each.hold_still()
        self._loop.call_soon_threadsafe(self._for_a_while, apart)

    def _for_a_while(self, held: list[Apart]) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self._loop.call_later(HOLD_S, self._go_on, held)

    def _go_on(self, held: list[Apart]) -> None:
        self._end = None
        for each in held:
            each.go_on()
