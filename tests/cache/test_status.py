"""Figures, hit-rate goals and alerts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from qts import telemetry
from qts.cache import Cache, CacheConfig, CacheStatus, Invalidation
from qts.cache.monitor import QueueStatus, RegionStatus
from qts.cache.store import Health, MemoryStore
from qts.domain import ManualClock
from tests.cache import samples
from tests.cache.loader import MemoryLoader

HEALTHY = CacheStatus(
    at=0,
    kinds={"position": RegionStatus(980, 0, 20, 0, 0, 0, 1000, 0.98, 0.95)},
    precheck_p50_us=3,
    precheck_p99_us=900,
    prechecks=1000,
    breaker="closed",
    breaker_opened=0,
    queue=QueueStatus(0, 0.0, 100, 0, 0),
    server=Health("9.1", 10, 100, 0, 3, 0.1),
)


def test_a_healthy_cache_raises_nothing() -> None:
    assert HEALTHY.alerts() == []


def kinds(rate: float, recent: int = 1000) -> dict[str, RegionStatus]:
    return {"position": RegionStatus(1, 0, 0, 0, 0, 0, recent, rate, 0.95)}


@pytest.mark.parametrize(
    ("change", "rule", "severity"),
    [
        ({"kinds": kinds(0.84)}, "hit rate < 85 %", "warning"),
        ({"kinds": kinds(0.94)}, "hit rate below its goal", "warning"),
        ({"precheck_p99_us": 5001}, "PreCheck p99 > 5 ms", "warning"),
        ({"server": Health("9", 10, 100, 0, 3, 0.91)}, "pool use > 90 %", "warning"),
        ({"server": Health("9", 81, 100, 0, 3, 0.1)}, "memory use > 80 %", "warning"),
        ({"breaker": "open"}, "circuit breaker open", "critical"),
        ({"breaker": "half-open"}, "circuit breaker open", "critical"),
        ({"queue": QueueStatus(9, 1001.0, 100, 0, 0)}, "oldest write > 1 s", "warning"),
        ({"server": Health("9", 10, 100, 7, 3, 0.1)}, "keys evicted", "warning"),
    ],
)
def test_each_rule_is_raised_beyond_its_threshold(
    change: dict[str, Any], rule: str, severity: str
) -> None:
    (alert,) = msgspec.structs.replace(HEALTHY, **change).alerts()
    assert (alert.rule, alert.severity) == (rule, severity)
    assert alert.text
    assert alert.action


@pytest.mark.parametrize(
    "change",
    [
        {"kinds": kinds(0.95)},
        {"kinds": kinds(0.10, recent=99)},  # too few to say anything
        {"precheck_p99_us": 5000},
        {"precheck_p99_us": 90_000, "prechecks": 99},
        {"server": Health("9", 80, 100, 0, 3, 0.90)},
        {"server": Health("9", 10**12, 0, 0, 3, 0.0)},  # no limit, nothing to exceed
        {"server": None},
    ],
)
def test_no_rule_is_raised_at_its_threshold(change: dict[str, Any]) -> None:
    assert msgspec.structs.replace(HEALTHY, **change).alerts() == []


@pytest.fixture
async def cache(
    opened: Callable[..., Awaitable[Cache]],
    memory: MemoryStore,
    config: CacheConfig,
    clock: ManualClock,
) -> Cache:
    loader = MemoryLoader(samples.position(), samples.risk())
    return await opened(memory, loader, config, clock)


async def test_every_result_is_counted_by_its_tier(cache: Cache, clock: ManualClock) -> None:
    for _ in range(4):
        await cache.positions.get("005930")
    await clock.advance(0.006)
    cache._tiers.near._slots.clear()
    await cache.positions.get("005930")
    seen = cache.status().kinds["position"]
    assert (seen.near, seen.redis, seen.database, seen.failed) == (3, 1, 1, 0)
    assert seen.hit_rate == 4 / 5
    assert seen.goal == 0.95


async def test_a_precheck_counts_each_of_its_four(cache: Cache, clock: ManualClock) -> None:
    at = int(clock.now().timestamp() * 1000)
    cache.prices.push(samples.price(at=at))
    await cache.precheck("005930", order_id="X")
    await cache.precheck("005930", order_id="X")
    status = cache.status()
    answers = {kind: (seen.near, seen.database) for kind, seen in status.kinds.items()}
    assert answers["price"] == (2, 0)
    assert answers["position"] == answers["risk"] == answers["order"] == (1, 1)
    assert status.prechecks == 2


async def test_a_reload_after_a_change_is_not_a_request(cache: Cache) -> None:
    """A value dropped because of our own change is loaded again; the lookup did not miss it."""
    await cache.positions.get("005930")
    for _ in range(10):
        await cache.invalidate(Invalidation(kind="position", name="005930"))
        await cache.positions.get("005930")
    seen = cache.status().kinds["position"]
    assert (seen.near, seen.database, seen.reloaded) == (10, 1, 10)
    assert seen.hit_rate == 10 / 11


async def test_a_lookup_between_a_change_and_its_reload_counts_as_a_reload(cache: Cache) -> None:
    await cache.positions.get("005930")
    cache.positions._drop_local("005930")
    await asyncio.gather(*(cache.positions.get("005930") for _ in range(3)))
    seen = cache.status().kinds["position"]
    assert (seen.database, seen.reloaded) == (1, 3)
    assert seen.recent == 1


async def test_the_hit_rate_is_recent(cache: Cache, clock: ManualClock) -> None:
    for _ in range(10):
        await cache.risks.get("nobody")
        await clock.advance(1)
    early = cache.status().kinds["risk"]
    await clock.advance(120)
    for _ in range(50):
        await cache.risks.get("account")
    late = cache.status().kinds["risk"]
    assert early.hit_rate == 0
    assert late.hit_rate == 49 / 50
    assert late.recent == 50


async def test_prometheus_counters_are_updated(cache: Cache, clock: ManualClock) -> None:
    await cache.positions.get("005930")
    await cache._monitor.check()
    text = telemetry.render_metrics().decode()
    assert 'qts_cache_requests_total{answer="database",kind="position"}' in text
    assert "qts_cache_breaker_open 0.0" in text
    assert "qts_cache_precheck_seconds" in text


async def test_the_status_can_be_encoded(cache: Cache) -> None:
    status = cache.status()
    assert msgspec.json.decode(msgspec.json.encode(status), type=CacheStatus) == status
