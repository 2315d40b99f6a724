"""The servers that a run stands on, asked for what they are."""

from __future__ import annotations

from msgspec.structs import replace
from redis.asyncio import Redis

from qts.app.summary import Service
from qts.cache import CacheConfig
from qts.cache.redis import connect
from qts.database import Database
from qts.domain import Secret
from qts.embedded import EmbeddedServers

FIRST_ANSWER_MS = 10_000


async def services_of(
    servers: EmbeddedServers, database: Database, cache_url: Secret, config: CacheConfig
) -> list[Service]:
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
        Service("postgres", version, database.where, _pid(pids.get("postgres"))),
        Service(kind, str(info[f"{kind}_version"]), where, _pid(pids.get("valkey"))),
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
