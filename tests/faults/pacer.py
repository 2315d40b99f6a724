"""A strategy that buys and sells as Turner does, one signal a second: a lively day, no flood."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import Tick
from qts.strategies import NoParams, Signal, View
from tests.acceptance.turner import Turner
from tests.faults import stepped_clock

INTERVAL_S = 1.0

stepped_clock.install()


class Pacer(Turner, key="pacer"):
    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._next_at = 0.0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        found = list(super().on_tick(tick, view))
        # Ticks before that are of a clock that was set back.
        if not found or self._next_at - INTERVAL_S <= tick.at < self._next_at:
            return ()
        self._next_at = tick.at + INTERVAL_S
        return found
