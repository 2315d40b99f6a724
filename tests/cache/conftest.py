"""Servers and caches for the tests of the cache."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from qts.cache import Cache, CacheConfig, CacheLoader, CacheStore
from qts.cache.redis import RedisStore
from qts.cache.store import MemoryStore
from qts.database import Database
from qts.domain import Clock, ManualClock, Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home, ValkeyServer
from tests.cache.loader import TableLoader

_numbers = itertools.count(1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Awaitable[Cache]]]:
    """Open a cache that is closed when the test ends."""
    async with AsyncExitStack() as stack:

        async def opening(
            store: CacheStore, loader: CacheLoader, config: CacheConfig, clock: Clock | None = None
        ) -> Cache:
            cache = Cache.open(store, loader, config, clock=clock)
            return await stack.enter_async_context(cache)

        yield opening


@pytest.fixture
def config() -> CacheConfig:
    """Settings with a key prefix for this test only."""
    return CacheConfig(prefix=f"qts-test-{os.getpid()}-{next(_numbers)}:")


@pytest.fixture
def patient(config: CacheConfig) -> CacheConfig:
    """Timeouts that a busy machine does not reach."""
    return msgspec.structs.replace(
        config, socket_timeout_ms=5000, precheck_ms=1000, read_ms=1000, load_timeout_ms=5000
    )


@pytest.fixture
async def shared(valkey_url: Secret, config: CacheConfig) -> AsyncIterator[RedisStore]:
    """The server of the session; the keys of this test are removed afterwards."""
    quiet = msgspec.structs.replace(config, socket_timeout_ms=5000)
    async with RedisStore.open(valkey_url, quiet) as store:
        yield store
        await store.delete(await store.keys(config.prefix))


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A separate server, to be stopped, killed and restarted."""
    servers = EmbeddedServers(Home.at(tmp_path / "home"), EmbeddedConfig(tcp=True), postgres=False)
    with servers:
        assert servers.valkey is not None
        yield servers.valkey


@pytest.fixture
async def loader(database: Database) -> TableLoader:
    loader = TableLoader(database)
    await loader.create()
    return loader


async def until(condition: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - no event from another process
            await asyncio.sleep(0.005)
