"""The keeper: once a second it looks after the circuit, sweeps, counts and tells how things are."""

from __future__ import annotations

import os

import msgspec

from qts import telemetry
from qts.cache.region import CacheTiers
from qts.cache.status import HIT_RATE_GOALS, CacheStatus, QueueStatus, RegionStatus
from qts.cache.store import Health, StoreWrite
from qts.domain import OperationError

STATUS = "status:"  # below the prefix; the process id follows
STATUS_TTL_MS = 5_000
_PROBE_SLACK = 4  # a probe may take so many times what a PreCheck may

log = telemetry.logger("cache")


class CacheMonitor:
    """Also publishes the status in Redis, where other processes find it for a few seconds."""

    def __init__(self, levels: CacheTiers) -> None:
        self._levels = levels
        self._health: Health | None = None
        self._said: set[str] = set()
        self._breaker = telemetry.gauge("qts_cache_breaker_open", "1 while Redis is left alone")
        self._depth = telemetry.gauge("qts_cache_queue_depth", "Writes that wait for a batch")
        self._memory = telemetry.gauge("qts_cache_server_memory_bytes", "Memory the server uses")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await self._levels.clock.sleep(self._levels.config.breaker.probe_s)

    async def look(self) -> None:
        levels = self._levels
        await self._see_server()
        levels.near.sweep()
        levels.figures.tick()
        status = self.status()
        self._breaker.set(status.breaker != "closed")
        self._depth.set(status.queue.depth)
        self._memory.set(self._health.used_memory if self._health else 0)
        self._raise_alerts(status)
        await self._publish(status)

    def status(self) -> CacheStatus:
        levels = self._levels
        latencies = levels.figures.precheck.lately()
        behind = levels.behind
        return CacheStatus(
            at=levels.now_ms(),
            kinds={kind: self._kind(kind) for kind in levels.figures.tallies},
            precheck_p50_us=latencies.percentile(50) / 1000,
            precheck_p99_us=latencies.percentile(99) / 1000,
            prechecks=latencies.count,
            breaker=levels.guard.breaker.state,
            breaker_opened=levels.guard.breaker.opened,
            queue=QueueStatus(
                behind.depth, behind.oldest_ms, behind.written, behind.dropped, behind.failed
            ),
            server=self._health,
        )

    def _kind(self, kind: str) -> RegionStatus:
        ever, lately = self._levels.figures.tallies[kind], self._levels.figures.lately(kind)
        return RegionStatus(
            **msgspec.structs.asdict(ever),
            recent=lately.questions,
            hit_rate=lately.hit_rate,
            goal=HIT_RATE_GOALS.get(kind),
        )

    async def _see_server(self) -> None:
        guard, store, config = self._levels.guard, self._levels.store, self._levels.config
        if guard.breaker.state == "closed":
            try:
                self._health = await guard.call_once(store.health, config.socket_timeout_ms)
            except OperationError:
                self._health = None
        else:
            self._health = await guard.probe(store.health, config.precheck_ms * _PROBE_SLACK)
            if self._health is not None:
                log.info("the cache answers again")

    async def _publish(self, status: CacheStatus) -> None:
        levels = self._levels
        text = msgspec.json.encode(status).decode()
        key = f"{levels.config.prefix}{STATUS}{os.getpid()}"
        entry = StoreWrite.of(key, status.at, STATUS_TTL_MS, {"ver": str(status.at), "json": text})
        try:
            await levels.guard.call_once(
                lambda: levels.store.write([entry]), levels.config.socket_timeout_ms
            )
        except OperationError as error:
            log.debug("the status was not published", error=str(error))

    def _raise_alerts(self, status: CacheStatus) -> None:
        """Each is told when it begins, not once a second."""
        alerts = status.alerts()
        for alert in alerts:
            if alert.rule not in self._said:
                tell = log.critical if alert.severity == "critical" else log.warning
                tell("cache alert", rule=alert.rule, what=alert.text, action=alert.action)
        self._said = {alert.rule for alert in alerts}
