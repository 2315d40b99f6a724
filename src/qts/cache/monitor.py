"""Monitor of the cache: probes the server, updates metrics, alerts, publishes the status."""

from __future__ import annotations

import os

import msgspec

from qts import telemetry
from qts.cache.region import CacheTiers
from qts.cache.status import HIT_RATE_GOALS, CacheStatus, QueueStatus, RegionStatus
from qts.cache.store import Health, StoreWrite
from qts.domain import OperationError

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
