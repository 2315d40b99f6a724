"""The Redis protocol, spoken to Valkey or Redis through redis-py."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import RedisError

from qts.cache.config import CacheConfig
from qts.domain import Secret, Unreachable


async def connect(url: Secret, config: CacheConfig) -> Redis:
    """A client that has answered a PING; its pool and time limits come from the settings."""
    try:
        client = Redis.from_url(
            url.reveal(),
            max_connections=config.pool_max,
            socket_timeout=config.socket_timeout_ms / 1000,
            socket_connect_timeout=config.connect_timeout_ms / 1000,
            client_name="qts",
        )
    except ValueError as error:
        raise Unreachable(f"the cache URL is not understood: {error}") from None
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        await client.aclose()
        raise Unreachable(f"the cache server does not answer: {error}") from error
    return client
