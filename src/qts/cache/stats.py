"""Statistics of the cache: result and latency of requests, in total and over the last minute."""

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
_COUNTS = (*_ANSWERS, "reloaded")
_PERIOD_NS = 20_000_000_000
_PERIODS = 3  # together the last minute


class HitCounts(msgspec.Struct):
    """Number of requests for one kind by result.

    near, redis: a hit. database: loaded. absent: in no tier (no price was pushed, or the request
    does not load).
    stale: the value is too old. failed: neither Redis nor the database replied. reloaded: loads of
    a value that an invalidation had dropped; no request, because the change caused it.
    """

    near: int = 0
    redis: int = 0
    database: int = 0
    absent: int = 0
    stale: int = 0
    failed: int = 0
    reloaded: int = 0

    @property
    def requests(self) -> int:
        return sum(getattr(self, answer) for answer in _ANSWERS)

    @property
    def hit_rate(self) -> float | None:
        """Share of hits; None before the first request."""
        requests = self.requests
        return sum(getattr(self, answer) for answer in _HITS) / requests if requests else None

    def minus(self, before: HitCounts) -> HitCounts:
        return HitCounts(
            **{name: getattr(self, name) - getattr(before, name) for name in _COUNTS},
        )


class LatencyWindow:
    """Latency histogram in total, and one of about the last minute."""

    def __init__(self, name: str, about: str, **labels: str) -> None:
        self._total = telemetry.latency(name, about, **labels)
        self._current, self._previous = LatencyHistogram(), LatencyHistogram()
        self._pending: list[int] = []
        self.record = self._pending.append
        """Record nanoseconds. `flush` moves them into the histograms, off the hot path."""

    def flush(self) -> None:
        new = np.array(self._pending, dtype=np.int64)
        self._pending.clear()
        self._total.record_many(new)
        self._current.record_many(new)

    def rotate(self) -> None:
        self._previous, self._current = self._current, LatencyHistogram()

    def recent(self) -> LatencyHistogram:
        self.flush()
        merged = LatencyHistogram()
        merged.merge(self._previous)
        merged.merge(self._current)
        return merged


class CacheStats:
    """Counts of all kinds; `tick`, once a second, moves the window and updates Prometheus."""

    def __init__(
        self, kinds: tuple[str, ...], clock: Clock, precheck_kinds: tuple[str, ...]
    ) -> None:
        self._clock = clock
        self._hit_counts = {kind: HitCounts() for kind in kinds}
        self._precheck_kinds = precheck_kinds
        self._near_hits: list[int] = []
        self.record_near_hits = self._near_hits.append
        """Record near hits of the first n precheck kinds; counted later, off the hot path."""
        self.precheck = LatencyWindow("qts_cache_precheck_seconds", "A PreCheck, all tiers")
        self.reads = LatencyWindow("qts_cache_read_seconds", "Reads that went to Redis")
        self._reported = {kind: HitCounts() for kind in kinds}
        self._past: deque[dict[str, HitCounts]] = deque([self._copy()], maxlen=_PERIODS)
        self._rotated_ns = clock.monotonic_ns()
        self._requests = telemetry.counter(
            "qts_cache_requests_total", "Requests to the cache", ("kind", "answer")
        )

    @property
    def hit_counts(self) -> dict[str, HitCounts]:
        for size, times in Counter(self._near_hits).items():
            for kind in self._precheck_kinds[:size]:
                self._hit_counts[kind].near += times
        self._near_hits.clear()
        return self._hit_counts

    def recent(self, kind: str) -> HitCounts:
        return self.hit_counts[kind].minus(self._past[0][kind])

    def tick(self) -> None:
        for kind, hits in self.hit_counts.items():
            new = hits.minus(self._reported[kind])
            for answer in _COUNTS:
                if count := getattr(new, answer):
                    self._requests.labels(kind, answer).inc(count)
        self._reported = self._copy()
        self.precheck.flush()
        self.reads.flush()
        if self._clock.monotonic_ns() - self._rotated_ns >= _PERIOD_NS:
            self._rotated_ns = self._clock.monotonic_ns()
            self._past.append(self._copy())
            self.precheck.rotate()
            self.reads.rotate()

    def _copy(self) -> dict[str, HitCounts]:
        return {kind: msgspec.structs.replace(hits) for kind, hits in self.hit_counts.items()}
