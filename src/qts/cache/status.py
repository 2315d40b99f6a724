"""Status of the cache: figures of each region, the server, and alerts.

The alert rules are in one table, RULES; the dashboard and `qts ops cache status` show the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from qts.cache.call_policy import State
from qts.cache.store import Health

HIT_RATE_GOALS: Mapping[str, float] = {"position": 0.95, "price": 0.99, "risk": 0.90}
MIN_SAMPLES = 100  # requests below which a rate or a percentile means nothing

Severity = Literal["warning", "critical"]


class RegionStatus(msgspec.Struct, frozen=True):
    """Counts since the start; the hit rate is of the last minute."""

    near: int
    redis: int
    database: int
    absent: int
    stale: int
    failed: int
    recent: int
    hit_rate: float | None
    goal: float | None
    reloaded: int = 0  # loads after an invalidation; not requests


class QueueStatus(msgspec.Struct, frozen=True):
    """Figures of the write-behind queue."""

    depth: int
    oldest_ms: float
    written: int
    dropped: int
    failed: int


class CacheAlert(msgspec.Struct, frozen=True):
    rule: str
    severity: Severity
    text: str
    action: str


class CacheStatus(msgspec.Struct, frozen=True, kw_only=True):
    at: int  # Unix ms
    kinds: dict[str, RegionStatus]
    precheck_p50_us: float
    precheck_p99_us: float
    prechecks: int
    breaker: State
    breaker_opened: int
    queue: QueueStatus
    server: Health | None  # None: unreachable

    def alerts(self) -> list[CacheAlert]:
        return [
            CacheAlert(rule, severity, text, action)
            for rule, severity, action, check in RULES
            for text in check(self)
        ]


def _hit_rates(status: CacheStatus) -> list[str]:
    return [
        f"{kind}: {region.hit_rate:.1%} of {region.recent} requests"
        for kind, region in status.kinds.items()
        if region.hit_rate is not None and region.recent >= MIN_SAMPLES and region.hit_rate < 0.85
    ]


def _goals(status: CacheStatus) -> list[str]:
    return [
        f"{kind}: {region.hit_rate:.1%}, the goal is {region.goal:.0%}"
        for kind, region in status.kinds.items()
        if region.goal is not None
        and region.hit_rate is not None
        and region.recent >= MIN_SAMPLES
        and 0.85 <= region.hit_rate < region.goal
    ]


def _latency(status: CacheStatus) -> list[str]:
    slow = status.prechecks >= MIN_SAMPLES and status.precheck_p99_us > 5000
    return [f"PreCheck p99 is {status.precheck_p99_us / 1000:.1f} ms"] if slow else []


def _pool(status: CacheStatus) -> list[str]:
    use = status.server.pool_use if status.server else 0.0
    return [f"{use:.0%} of the allowed calls are in flight"] if use > 0.9 else []


def _memory(status: CacheStatus) -> list[str]:
    if status.server is None or not status.server.max_memory:
        return []
    use = status.server.used_memory / status.server.max_memory
    return [f"{use:.0%} of the server's memory is used"] if use > 0.8 else []


def _breaker(status: CacheStatus) -> list[str]:
    return [] if status.breaker == "closed" else [f"the circuit is {status.breaker}"]


def _queue(status: CacheStatus) -> list[str]:
    late = status.queue.oldest_ms > 1000
    return [f"a write has waited {status.queue.oldest_ms:.0f} ms"] if late else []


def _evicted(status: CacheStatus) -> list[str]:
    evicted = status.server.evicted_keys if status.server else 0
    return [f"{evicted} keys were evicted"] if evicted else []


# Name, severity, action, and a check that returns one text per finding.
RULES: tuple[tuple[str, Severity, str, Callable[[CacheStatus], list[str]]], ...] = (
    ("hit rate < 85 %", "warning", "Investigate", _hit_rates),
    ("hit rate below its goal", "warning", "Investigate", _goals),
    ("PreCheck p99 > 5 ms", "warning", "Optimize", _latency),
    ("pool use > 90 %", "warning", "Scale up", _pool),
    ("memory use > 80 %", "warning", "Check the eviction policy", _memory),
    ("circuit breaker open", "critical", "Check Redis", _breaker),
    ("oldest write > 1 s", "warning", "Check Redis", _queue),
    ("keys evicted", "warning", "Check the eviction policy", _evicted),
)
