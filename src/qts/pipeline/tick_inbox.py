"""Ticks that wait for a strategy."""

from __future__ import annotations

from collections import deque
from itertools import islice

from qts.domain import Tick

INBOX_CAPACITY = 10_000
REORDER_WINDOW_S = 5.0  # a tick older than that means the clock was set back


class TickInbox:
    """Queue of one strategy: any thread adds, one at a time takes; a full one drops its oldest."""

    def __init__(self) -> None:
        self._ticks: deque[Tick] = deque(maxlen=INBOX_CAPACITY)
        self._latest: dict[str, float] = {}  # time of the last tick taken, by symbol

    def __len__(self) -> int:
        return len(self._ticks)

    @property
    def is_full(self) -> bool:
        return len(self._ticks) == INBOX_CAPACITY

    def add(self, tick: Tick) -> None:
        self._ticks.append(tick)

    def clear(self) -> None:
        self._ticks.clear()

    def take(self) -> tuple[Tick, ...]:
        """Return what waits now."""
        return tuple(islice(iter(self._next, None), len(self._ticks)))

    def _next(self) -> Tick | None:
        """Return the next tick; one that two lane workers delivered out of order is skipped."""
        while self._ticks:
            tick = self._ticks.popleft()
            behind_s = self._latest.get(tick.symbol, 0.0) - tick.at
            if not 0 < behind_s < REORDER_WINDOW_S:
                self._latest[tick.symbol] = tick.at
                return tick
        return None
