"""What is counted: how each question was answered, how long it took, lately and in all."""

from __future__ import annotations

from collections import Counter, deque
from typing import Literal

import msgspec
import numpy as np

from qts import telemetry
from qts.domain import Clock
from qts.telemetry import LatencyHistogram

Answer = Literal["near", "redis", "database", "absent", "stale", "failed"]

_HITS = ("near", "redis")
_ANSWERS: tuple[Answer, ...] = ("near", "redis", "database", "absent", "stale", "failed")
_PERIOD_NS = 20_000_000_000
_PERIODS = 3  # lately: the last minute


class HitCounts(msgspec.Struct):
    """How the questions for one kind were answered.

    near, redis: a hit. database: loaded. absent: there is none (a price nobody has sent).
    stale: what there was is too old. failed: neither Redis nor the database answered.
    """

    near: int = 0
    redis: int = 0
    database: int = 0
    absent: int = 0
    stale: int = 0
    failed: int = 0

    @property
    def questions(self) -> int:
        return sum(getattr(self, answer) for answer in _ANSWERS)

    @property
    def hit_rate(self) -> float | None:
        """None before the first question."""
        questions = self.questions
        return sum(getattr(self, answer) for answer in _HITS) / questions if questions else None

    def minus(self, before: HitCounts) -> HitCounts:
        return HitCounts(
            **{name: getattr(self, name) - getattr(before, name) for name in _ANSWERS},
        )


class LatencyWindow:
    """A histogram for all time, and one of the last minute or so."""

    def __init__(self, name: str, about: str, **labels: str) -> None:
        self._ever = telemetry.latency(name, about, **labels)
        self._now, self._before = LatencyHistogram(), LatencyHistogram()
        self._new: list[int] = []
        self.record = self._new.append
        """In nanoseconds. Sorted into the histograms later: their memory is cold at this moment."""

    def sort(self) -> None:
        new = np.array(self._new, dtype=np.int64)
        self._new.clear()
        self._ever.record_many(new)
        self._now.record_many(new)

    def turn(self) -> None:
        self._before, self._now = self._now, LatencyHistogram()

    def lately(self) -> LatencyHistogram:
        self.sort()
        merged = LatencyHistogram()
        merged.merge(self._before)
        merged.merge(self._now)
        return merged


class CacheStats:
    """All tallies; `tick` once a second moves the window and tells Prometheus."""

    def __init__(self, kinds: tuple[str, ...], clock: Clock, together: tuple[str, ...]) -> None:
        self._clock = clock
        self._tallies = {kind: HitCounts() for kind in kinds}
        self._together = together
        self._served: list[int] = []
        self.served_here = self._served.append
        """This process had the first so many of those asked for together; tallied later."""
        self.precheck = LatencyWindow("qts_cache_precheck_seconds", "A PreCheck, all levels")
        self.reads = LatencyWindow("qts_cache_read_seconds", "Reads that went to Redis")
        self._told = {kind: HitCounts() for kind in kinds}
        self._past: deque[dict[str, HitCounts]] = deque([self._copy()], maxlen=_PERIODS)
        self._turned_ns = clock.monotonic_ns()
        self._requests = telemetry.counter(
            "qts_cache_requests_total", "Questions to the cache", ("kind", "answer")
        )

    @property
    def tallies(self) -> dict[str, HitCounts]:
        for size, times in Counter(self._served).items():
            for kind in self._together[:size]:
                self._tallies[kind].near += times
        self._served.clear()
        return self._tallies

    def lately(self, kind: str) -> HitCounts:
        return self.tallies[kind].minus(self._past[0][kind])

    def tick(self) -> None:
        for kind, tally in self.tallies.items():
            news = tally.minus(self._told[kind])
            for answer in _ANSWERS:
                if count := getattr(news, answer):
                    self._requests.labels(kind, answer).inc(count)
        self._told = self._copy()
        self.precheck.sort()
        self.reads.sort()
        if self._clock.monotonic_ns() - self._turned_ns >= _PERIOD_NS:
            self._turned_ns = self._clock.monotonic_ns()
            self._past.append(self._copy())
            self.precheck.turn()
            self.reads.turn()

    def _copy(self) -> dict[str, HitCounts]:
        return {kind: msgspec.structs.replace(tally) for kind, tally in self.tallies.items()}
