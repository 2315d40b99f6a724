"""A strategy that buys and sells as Turner does, one signal a second: a lively day, no flood."""

from __future__ import annotations

from collections.abc import Iterable

from qts.domain import Tick
from qts.strategies import NoParams, Signal, View
from tests.acceptance.turner import Turner

INTERVAL_S = 1.0


class Pacer(Turner, key="pacer"):
    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._next_at = 0.0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        found = list(super().on_tick(tick, view))
        if not found or tick.at < self._next_at:
            return ()
        self._next_at = tick.at + INTERVAL_S
        return found
