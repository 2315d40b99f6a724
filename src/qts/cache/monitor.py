"""Monitor of the cache, and inspection of a cache server from outside the running processes."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import msgspec

from qts import telemetry
from qts.cache.config import CacheConfig
from qts.cache.entries import (
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
)
from qts.cache.entry import CacheEntry
from qts.cache.region import CacheTiers
from qts.cache.status import HIT_RATE_GOALS, CacheStatus, QueueStatus, RegionStatus
from qts.cache.store import CacheStore, Health, StoreWrite
from qts.cache.trade_counter import TradeIds
from qts.domain import OperationError, RefusedError

STATUS = "status:"  # after the prefix; the process id follows
STATUS_TTL_MS = 5_000
_PROBE_FACTOR = 4  # timeout of a probe, in multiples of precheck_ms

log = telemetry.logger("cache")


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
