"""Where the servers are: named by the settings, embedded in the home, or started for an errand.

The servers that a run stands on, asked for what they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace
from redis.asyncio import Redis

from qts.app.summary import ServerInfo
from qts.cache import CacheConfig
from qts.cache.redis import RedisStore, connect
from qts.config import Config
from qts.database import Database
from qts.domain import Secret, UnreachableError
from qts.embedded import EmbeddedServers, Home, default_home


def database_url(config: Config, home: Home) -> Secret:
    return config.database.url or home.postgres_url()


def cache_url(config: Config, home: Home) -> Secret:
    return config.cache.url or home.valkey_url()


@contextlib.asynccontextmanager
async def open_database(config: Config) -> AsyncIterator[Database]:
    """The database for one short errand: the settings' own, that of a QTS which runs on this
    home, or an embedded one started for the occasion."""
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
async def open_store(config: Config) -> AsyncIterator[RedisStore]:
    """The cache for one short errand: the settings' own, or that of a QTS on this home."""
    home = resolve_home(config)
    if config.cache.url is None and home.holder() is None:
        raise UnreachableError(
            f"there is no cache to look into: no QTS runs on home {home.path}, "
            "and the settings give no cache.url"
        )
    # Nobody trades on the answer: it may take its time.
    patient = msgspec.structs.replace(config.cache, socket_timeout_ms=5000, connect_timeout_ms=5000)
    async with RedisStore.open(cache_url(config, home), patient) as store:
        yield store


def resolve_home(config: Config) -> Home:
    return Home.at(config.home or default_home(os.environ))


def start_servers(
    home: Home, config: Config
) -> contextlib.AbstractAsyncContextManager[EmbeddedServers]:
    """The home is ours alone while we run, whether or not a server of ours lives in it."""
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


FIRST_ANSWER_MS = 10_000


async def describe_servers(
    servers: EmbeddedServers, database: Database, cache_url: Secret, config: CacheConfig
) -> list[ServerInfo]:
    """Both have answered when this returns."""
    pids = {server["name"]: server["pid"] for server in servers.describe()}
    ping = await database.ping()
    cache = await connect(cache_url, _patient(config))
    try:
        info = await cache.info("server")
        where = _place(cache)
    finally:
        await cache.aclose()
    kind = "valkey" if "valkey_version" in info else "redis"
    # Debian's server adds its package's version to its own.
    version = ping.server_version.split()[0]
    return [
        ServerInfo("postgres", version, database.where, _pid(pids.get("postgres"))),
        ServerInfo(kind, str(info[f"{kind}_version"]), where, _pid(pids.get("valkey"))),
    ]


def _patient(config: CacheConfig) -> CacheConfig:
    """A first answer may take longer than any that an order waits for."""
    return replace(
        config,
        socket_timeout_ms=max(FIRST_ANSWER_MS, config.socket_timeout_ms),
        connect_timeout_ms=max(FIRST_ANSWER_MS, config.connect_timeout_ms),
    )


def _place(cache: Redis) -> str:
    where = cache.connection_pool.connection_kwargs
    return str(where.get("path") or f"{where.get('host')}:{where.get('port')}")


def _pid(value: object) -> int | None:
    return value if isinstance(value, int) else None
