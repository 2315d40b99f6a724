"""Passes every snapshot on as a record; holds no market state and judges nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from qts.feed.snapshot import SCHEMA, ObservationSnapshot, PatternRecord

Sink = Callable[[PatternRecord], None]


class Observer:
    """Sinks are told in order: the recorder first, so that what others saw is on disk."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._numbers = itertools.count(1)

    def on_snapshot(self, snapshot: ObservationSnapshot) -> PatternRecord:
        record = PatternRecord(SCHEMA, next(self._numbers), snapshot)
        for sink in self._sinks:
            sink(record)
        return record
