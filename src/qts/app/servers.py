"""PostgreSQL and Valkey of a run or a command: from the settings, or embedded in the home."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from qts.cache import CacheConfig, CacheStore
from qts.config import Config
from qts.database import Database
from qts.domain import Secret, UnreachableError
from qts.embedded import EmbeddedServers, Home, default_home

# The client of Redis takes a fifth of a second to import; most commands only open the database.
if TYPE_CHECKING:
    from redis.asyncio import Redis

    from qts.cache.redis import RedisStore


class ServerInfo(msgspec.Struct, frozen=True):
    """A server of the run, as shown to the operator."""

    name: str
    version: str
    where: str
    pid: int | None  # None where the settings name the server


def database_url(config: Config, home: Home) -> Secret:
    return config.database.url or home.postgres_url()


def cache_url(config: Config, home: Home) -> Secret:
    return config.cache.url or home.valkey_url()


@contextlib.asynccontextmanager
async def open_database(config: Config) -> AsyncIterator[Database]:
    """Open the database for one command: from the settings, of a running QTS, or embedded."""
    async with contextlib.AsyncExitStack() as stack:
        home = resolve_home(config)
        if config.database.url is None and home.holder() is None:
            await stack.enter_async_context(
                _started(EmbeddedServers(home, config.embedded, valkey=False))
            )
        yield await stack.enter_async_context(
            Database.open(database_url(config, home), config.database)
        )


@contextlib.asynccontextmanager
async def open_status_store(config: Config) -> AsyncIterator[CacheStore]:
    """Open the cache of the live status; an empty one where only the database is named."""
    from qts.cache.memory import MemoryStore

    if has_cache(config) or config.database.url is None:
        async with open_store(config) as store:
            yield store
    else:
        yield MemoryStore()


def has_cache(config: Config) -> bool:
    """Return whether the settings name a cache, or a QTS on this home runs one."""
    return config.cache.url is not None or resolve_home(config).holder() is not None


@contextlib.asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[RedisStore]:
    """Open the cache for one command: from the settings, or of a running QTS."""
    from qts.cache.redis import RedisStore

    home = resolve_home(config)
    if config.cache.url is None and home.holder() is None:
        raise UnreachableError(
            f"no cache to read: no QTS runs on home {home.path}, and the settings give no cache.url"
        )
    config_of_command = replace(config.cache, socket_timeout_ms=5000, connect_timeout_ms=5000)
    async with RedisStore.open(cache_url(config, home), config_of_command) as store:
        yield store


def resolve_home(config: Config) -> Home:
    return Home.at(config.home or default_home(os.environ))


def start_servers(
    home: Home, config: Config
) -> contextlib.AbstractAsyncContextManager[EmbeddedServers]:
    """Lock the home and start the embedded servers that the settings do not replace."""
    return _started(
        EmbeddedServers(
            home,
            config.embedded,
            postgres=config.database.url is None,
            valkey=config.cache.url is None,
        )
    )


@contextlib.asynccontextmanager
async def _started(servers: EmbeddedServers) -> AsyncIterator[EmbeddedServers]:
    try:
        await asyncio.to_thread(servers.start)
        yield servers
    finally:
        await asyncio.to_thread(servers.stop)


FIRST_REPLY_TIMEOUT_MS = 10_000


async def describe_servers(
    servers: EmbeddedServers, database: Database, cache_url: Secret, config: CacheConfig
) -> list[ServerInfo]:
    """Return version and address of both servers, after both have answered."""
    from qts.cache.redis import connect

    pids = {server["name"]: server["pid"] for server in servers.describe()}
    ping = await database.ping()
    cache = await connect(cache_url, _with_longer_timeouts(config))
    try:
        info = await cache.info("server")
        where = _address(cache)
    finally:
        await cache.aclose()
    kind = "valkey" if "valkey_version" in info else "redis"
    version = ping.server_version.split()[0]  # Debian appends its package version
    return [
        ServerInfo("postgres", version, database.where, _pid(pids.get("postgres"))),
        ServerInfo(kind, str(info[f"{kind}_version"]), where, _pid(pids.get("valkey"))),
    ]


def _with_longer_timeouts(config: CacheConfig) -> CacheConfig:
    """Allow the first reply more time than orders allow."""
    return replace(
        config,
        socket_timeout_ms=max(FIRST_REPLY_TIMEOUT_MS, config.socket_timeout_ms),
        connect_timeout_ms=max(FIRST_REPLY_TIMEOUT_MS, config.connect_timeout_ms),
    )


def _address(cache: Redis) -> str:
    where = cache.connection_pool.connection_kwargs
    return str(where.get("path") or f"{where.get('host')}:{where.get('port')}")


def _pid(value: object) -> int | None:
    return value if isinstance(value, int) else None
