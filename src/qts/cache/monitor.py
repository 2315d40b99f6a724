"""Monitor of the cache, its status and alerts, and inspection of a server by other processes.

The alert rules are in one table, RULES; the dashboard and `qts ops cache status` show the result.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from qts import telemetry
from qts.cache.call_policy import State
from qts.cache.config import CacheConfig
from qts.cache.entries import (
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
    TradeIds,
)
from qts.cache.store import CacheEntry, CacheStore, Health, StoreWrite
from qts.domain import OperationError, RefusedError

if TYPE_CHECKING:
    from qts.cache.region import CacheTiers

HIT_RATE_GOALS: Mapping[str, float] = {"position": 0.95, "price": 0.99, "risk": 0.90}
MIN_SAMPLES = 100  # requests below which a rate or a percentile means nothing

STATUS = "status:"  # after the prefix; the process id follows
STATUS_TTL_MS = 5_000
_PROBE_FACTOR = 4  # timeout of a probe, in multiples of precheck_ms

Severity = Literal["warning", "critical"]

log = telemetry.logger("cache")


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


class CacheMonitor:
    """Periodic check that also stores the status in Redis, for other processes."""

    def __init__(self, tiers: CacheTiers) -> None:
        self._tiers = tiers
        self._health: Health | None = None
        self._active: set[str] = set()
        self._breaker = telemetry.gauge("qts_cache_breaker_open", "1 while the circuit is open")
        self._depth = telemetry.gauge("qts_cache_queue_depth", "Pending writes to Redis")
        self._memory = telemetry.gauge("qts_cache_server_memory_bytes", "Memory the server uses")

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await self._tiers.clock.sleep(self._tiers.config.breaker.probe_s)

    async def check(self) -> None:
        tiers = self._tiers
        await self._check_server()
        tiers.near.sweep()
        tiers.stats.tick()
        status = self.status()
        self._breaker.set(status.breaker != "closed")
        self._depth.set(status.queue.depth)
        self._memory.set(self._health.used_memory if self._health else 0)
        self._raise_alerts(status)
        await self._publish(status)

    def status(self) -> CacheStatus:
        tiers = self._tiers
        latencies = tiers.stats.precheck.recent()
        queue = tiers.write_behind
        return CacheStatus(
            at=tiers.now_ms(),
            kinds={kind: self._kind(kind) for kind in tiers.stats.hit_counts},
            precheck_p50_us=latencies.percentile(50) / 1000,
            precheck_p99_us=latencies.percentile(99) / 1000,
            prechecks=latencies.count,
            breaker=tiers.policy.breaker.state,
            breaker_opened=tiers.policy.breaker.opened,
            queue=QueueStatus(
                queue.depth, queue.oldest_ms, queue.written, queue.dropped, queue.failed
            ),
            server=self._health,
        )

    def _kind(self, kind: str) -> RegionStatus:
        total, recent = self._tiers.stats.hit_counts[kind], self._tiers.stats.recent(kind)
        return RegionStatus(
            **msgspec.structs.asdict(total),
            recent=recent.requests,
            hit_rate=recent.hit_rate,
            goal=HIT_RATE_GOALS.get(kind),
        )

    async def _check_server(self) -> None:
        policy, store, config = self._tiers.policy, self._tiers.store, self._tiers.config
        if policy.breaker.state == "closed":
            try:
                self._health = await policy.call_once(store.health, config.socket_timeout_ms)
            except OperationError:
                self._health = None
        else:
            self._health = await policy.probe(store.health, config.precheck_ms * _PROBE_FACTOR)
            if self._health is not None:
                log.info("cache server reachable again; circuit closed")

    async def _publish(self, status: CacheStatus) -> None:
        tiers = self._tiers
        text = msgspec.json.encode(status).decode()
        key = f"{tiers.config.prefix}{STATUS}{os.getpid()}"
        entry = StoreWrite.of(key, status.at, STATUS_TTL_MS, {"ver": str(status.at), "json": text})
        try:
            await tiers.policy.call_once(
                lambda: tiers.store.write([entry]), tiers.config.socket_timeout_ms
            )
        except OperationError as error:
            log.debug("cache status not published", error=str(error))

    def _raise_alerts(self, status: CacheStatus) -> None:
        """Log each alert when it begins, not once a second."""
        alerts = status.alerts()
        for alert in alerts:
            if alert.rule not in self._active:
                emit = log.critical if alert.severity == "critical" else log.warning
                emit("cache alert", rule=alert.rule, what=alert.text, action=alert.action)
        self._active = {alert.rule for alert in alerts}


_KINDS: dict[str, type[CacheEntry]] = {
    each.kind: each
    for each in (
        CachedPrice,
        CachedPosition,
        CachedOrderBook,
        CachedRisk,
        CachedOrder,
        CachedStrategyParams,
    )
}
_PREFIXES = {each.prefix: each.kind for each in _KINDS.values()} | {TradeIds.prefix: TradeIds.kind}
_DEPTH = 50


class ServerStatus(msgspec.Struct, frozen=True):
    """Health of the server, number of values of each kind, and published statuses."""

    server: Health
    keys: dict[str, int]
    processes: dict[str, CacheStatus]  # by process id


async def inspect_server(store: CacheStore, config: CacheConfig) -> ServerStatus:
    health = await store.health()
    keys = [key.removeprefix(config.prefix) for key in await store.keys(config.prefix)]
    status_keys = [key for key in keys if key.startswith(STATUS)]
    processes: dict[str, CacheStatus] = {}
    for key, fields in zip(
        status_keys, await store.read([config.prefix + key for key in status_keys]), strict=True
    ):
        if fields is not None:
            status = msgspec.json.decode(fields["json"], type=CacheStatus)
            processes[key.removeprefix(STATUS)] = status
    return ServerStatus(health, _count(keys), processes)


async def read_raw(
    store: CacheStore, config: CacheConfig, kind: str, name: str
) -> dict[str, Any] | None:
    """Return the stored fields; of a book also the levels, best first, prices in units."""
    if kind not in _KINDS:
        raise RefusedError(f"{kind!r} is not a kind of value; allowed are {', '.join(_KINDS)}")
    key = config.prefix + _KINDS[kind].key(name)
    if kind != CachedOrderBook.kind:
        (fields,) = await store.read([key])
        return dict(fields) if fields is not None else None
    found = await store.read_book(key, _DEPTH)
    if found is None:
        return None
    return {**found[0], "bids": list(found[1].bids), "asks": list(found[1].asks)}


def _count(keys: list[str]) -> dict[str, int]:
    """Count values, not keys: a book is one value in three keys."""
    kinds = (
        _PREFIXES.get(key.split(":")[0] + ":")
        for key in keys
        if not (key.startswith(CachedOrderBook.prefix) and key.endswith((":bid", ":ask")))
    )
    return dict(Counter(kind for kind in kinds if kind))
