"""Redis dies, hangs, lags, lies and fills up while readers go on asking."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from redis.asyncio import Redis

from qts.cache import BreakerConfig, Cache, CacheConfig
from qts.cache.redis import RedisStore, connect
from qts.domain import Secret
from qts.embedded import ValkeyServer
from tests.cache import samples
from tests.cache.conftest import until
from tests.cache.loader import TableLoader
from tests.cache.proxy import Proxy
from tests.cache.watch import Watch


@pytest.fixture
def config(config: CacheConfig) -> CacheConfig:
    """Limits of a machine that runs other tests as well; the ratios are those of the defaults."""
    return msgspec.structs.replace(config, precheck_ms=20, read_ms=100, load_timeout_ms=1000)


@pytest.fixture
def brisk(config: CacheConfig) -> CacheConfig:
    """Five times the probes: a fault of two seconds shows what one of ten would."""
    return msgspec.structs.replace(config, breaker=BreakerConfig(probe_s=0.2))


@asynccontextmanager
async def watched(
    url: Secret, loader: TableLoader, config: CacheConfig, recovers_s: float = 30.0
) -> AsyncIterator[Watch]:
    async with (
        RedisStore.open(url, config) as one,
        RedisStore.open(url, config) as two,
        Cache.open(one, loader, config) as feed,
        Cache.open(two, loader, config) as reader,
        Watch.over(feed, reader, loader, recovers_s) as watch,
    ):
        yield watch


def url_of(valkey: ValkeyServer) -> Secret:
    assert valkey.tcp_url is not None
    return valkey.tcp_url


@pytest.fixture
async def admin(valkey: ValkeyServer) -> AsyncIterator[Redis]:
    client = await connect(url_of(valkey), CacheConfig(socket_timeout_ms=5000))
    yield client
    await client.aclose()


def opened(watch: Watch) -> bool:
    return watch.reader._tiers.policy.breaker.opened > 0


async def test_redis_is_killed_and_comes_back_empty(
    valkey: ValkeyServer, loader: TableLoader, brisk: CacheConfig
) -> None:
    await _kill(valkey, loader, brisk, for_s=2.0, recovers_s=30.0)


@pytest.mark.soak
async def test_redis_is_killed_and_comes_back_empty_after_ten_seconds(
    valkey: ValkeyServer, loader: TableLoader, config: CacheConfig
) -> None:
    await _kill(valkey, loader, config, for_s=10.0, recovers_s=5.0)


async def _kill(
    valkey: ValkeyServer,
    loader: TableLoader,
    config: CacheConfig,
    *,
    for_s: float,
    recovers_s: float,
) -> None:
    async with watched(url_of(valkey), loader, config, recovers_s) as watch:
        pid = valkey.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: valkey.died)
        await watch.during(for_s)
        await until(lambda: opened(watch))
        await asyncio.to_thread(valkey.start)
    assert watch.results["price refused"] > 0
    assert watch.results["position"] > 20


async def test_redis_hangs(valkey: ValkeyServer, loader: TableLoader, config: CacheConfig) -> None:
    """For longer than a call with a limit may take on a busy machine."""
    async with watched(url_of(valkey), loader, config) as watch:
        pid = valkey.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await watch.during(5.0)
            await until(lambda: opened(watch))
        finally:
            os.kill(pid, signal.SIGCONT)
    assert watch.results["price refused"] > 0


async def test_redis_is_late_by_twenty_milliseconds(
    valkey: ValkeyServer, loader: TableLoader, config: CacheConfig
) -> None:
    strict = msgspec.structs.replace(config, precheck_ms=4)
    async with Proxy.to_url(url_of(valkey)) as proxy:
        async with watched(proxy.url_of(url_of(valkey)), loader, strict) as watch:
            proxy.delay_s, proxy.jitter_s = 0.02, 0.01
            await watch.during(1.5)
            proxy.heal()
        assert watch.results["precheck refused"] > 0


@pytest.mark.parametrize("after", [1, 40, 700])
async def test_answers_are_cut_in_the_middle(
    valkey: ValkeyServer, loader: TableLoader, config: CacheConfig, after: int
) -> None:
    async with Proxy.to_url(url_of(valkey)) as proxy:
        async with watched(proxy.url_of(url_of(valkey)), loader, config) as watch:
            proxy.cut_after = after
            proxy.reset_all()
            await watch.during(0.5)
            proxy.heal()
        assert proxy.connections > 4


async def test_connections_are_reset_and_refused(
    valkey: ValkeyServer, loader: TableLoader, config: CacheConfig
) -> None:
    async with Proxy.to_url(url_of(valkey)) as proxy:
        async with watched(proxy.url_of(url_of(valkey)), loader, config) as watch:
            for _ in range(5):
                proxy.reset_all()
                await watch.during(0.05)
            proxy.refusing = True
            proxy.reset_all()
            await watch.during(0.5)
            proxy.heal()
            proxy.silent = True
            await watch.during(0.5)
            proxy.heal()
        assert watch.results["price"] > 0


async def test_everything_is_flushed_even_the_scripts(
    valkey: ValkeyServer, loader: TableLoader, patient: CacheConfig, admin: Redis
) -> None:
    async with watched(url_of(valkey), loader, patient) as watch:
        for _ in range(5):
            await admin.flushall()
            await admin.script_flush()
            await watch.during(0.1)
        assert not opened(watch)  # the server was there all the time


async def test_a_full_server_loses_writes_loudly_and_goes_on(
    valkey: ValkeyServer, loader: TableLoader, patient: CacheConfig, admin: Redis
) -> None:
    async with watched(url_of(valkey), loader, patient) as watch:
        await admin.config_set("maxmemory-policy", "noeviction")
        await admin.config_set("maxmemory", "1")
        failed = watch.feed.status().queue.failed
        await watch.during(0.5)
        assert watch.feed.status().queue.failed > failed
        assert not opened(watch)  # it says no, and it is there
        await admin.config_set("maxmemory", "100mb")


async def test_a_start_without_redis_works_and_finds_it_later(
    valkey: ValkeyServer, loader: TableLoader, config: CacheConfig
) -> None:
    url = url_of(valkey)
    valkey.stop()
    await loader.store(samples.position())
    async with (
        RedisStore.open(url, config) as store,
        Cache.open(store, loader, config) as cache,
    ):
        found = await cache.positions.get("005930")
        assert found is not None
        await until(lambda: cache.status().breaker != "closed")
        await asyncio.to_thread(valkey.start)
        await until(lambda: cache.status().breaker == "closed")
        cache.prices.push(samples.price())
        await until(lambda: cache.status().queue.written > 0)
