"""Full server: short-lived values are evicted, the trade count of the day stays."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from qts.cache import CacheConfig
from qts.cache.call_policy import store_write
from qts.cache.redis import RedisStore, connect
from qts.cache.store import UNKNOWN_COUNT, CountRequest
from qts.embedded import ValkeyServer
from tests.cache import samples

TRADES = 20
ROUNDS_MAX = 200


@pytest.fixture
async def admin(valkey: ValkeyServer) -> AsyncIterator[Redis]:
    assert valkey.tcp_url is not None
    client = await connect(valkey.tcp_url, CacheConfig(socket_timeout_ms=5000))
    yield client
    await client.aclose()


async def evicted(admin: Redis) -> int:
    stats: dict[str, int] = await admin.info("stats")
    return int(stats["evicted_keys"])


async def test_the_trade_count_outlives_thousands_of_evicted_values(
    valkey: ValkeyServer, config: CacheConfig, admin: Redis
) -> None:
    assert valkey.tcp_url is not None
    quiet = CacheConfig(prefix=config.prefix, socket_timeout_ms=5000)
    tomorrow = int(time.time() * 1000) + 86_400_000

    def trade(n: int) -> CountRequest:
        return CountRequest(
            f"{config.prefix}daily_trade_count:account/day", f"t{n}", 1000, tomorrow
        )

    async with RedisStore.open(valkey.tcp_url, quiet) as store:
        for n in range(TRADES):
            assert await store.count(trade(n), ()) == n + 1
        used: dict[str, int] = await admin.info("memory")
        await admin.config_set("maxmemory", int(used["used_memory"]) + 1_000_000)
        order = samples.order()
        for turn in range(ROUNDS_MAX):
            names = (f"{config.prefix}ord:{turn}-{n}" for n in range(500))
            assert all(await store.write(store_write(name, order, 60_000) for name in names))
            if await evicted(admin) > 5000:
                break
        else:
            raise AssertionError("the server evicted nothing")
        again = await store.count(trade(0))
        assert again != UNKNOWN_COUNT, "the count of the day was evicted"
        assert again == TRADES
