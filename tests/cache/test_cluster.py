"""A cluster of three masters and three replicas loses a master while readers keep reading."""

from __future__ import annotations

from pathlib import Path

import msgspec

from qts.cache import Cache, CacheConfig
from qts.cache.redis import RedisStore
from tests.cache.cluster import Cluster
from tests.cache.loader import TableLoader
from tests.cache.watch import Watch


async def test_a_killed_master_is_survived(
    tmp_path: Path, loader: TableLoader, config: CacheConfig
) -> None:
    config = msgspec.structs.replace(
        config, cluster=True, precheck_ms=50, read_ms=150, load_timeout_ms=1000
    )
    async with (
        Cluster.formed(tmp_path) as cluster,
        RedisStore.open(cluster.url, config) as one,
        RedisStore.open(cluster.url, config) as two,
        Cache.open(one, loader, config) as feed,
        Cache.open(two, loader, config) as reader,
    ):
        async with Watch.over(feed, reader, loader) as watch:
            key = reader.prices.key("005930")
            before = await cluster.master_of(key)
            await cluster.kill_master_of(key)
            await watch.during(0.5)
            # A replica takes over by itself, within a few node timeouts.
            await watch.recovered(within_s=15)
            assert await cluster.master_of(key) != before
        assert watch.results["position"] > 50


async def test_keys_that_change_together_lie_on_one_node(
    tmp_path: Path, config: CacheConfig
) -> None:
    from redis.crc import key_slot

    from qts.cache import CachedOrderBook
    from qts.cache.store import book_keys

    slots = {
        key_slot(key.encode()) for key in book_keys(config.prefix + CachedOrderBook.key("005930"))
    }
    assert len(slots) == 1
    others = {key_slot((config.prefix + CachedOrderBook.key(f"S{n}")).encode()) for n in range(50)}
    assert len(others) > 40, "not everything on one node"
