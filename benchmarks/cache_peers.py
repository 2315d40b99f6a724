"""Peers of the cache: redis-py, and two cache libraries where they are installed.

cashews and aiocache store one string per key: no hash, no version, no validation on read. The
benchmark compares writing a batch with its TTLs and reading several keys at once.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from redis.asyncio import Redis

from qts.cache import CacheEntry
from qts.domain import Secret

TTL_MS = 60_000

Fields = dict[str, str]


class Library(Protocol):
    """A cache of strings by key."""

    async def write(self, values: dict[str, Fields]) -> Any: ...
    async def read(self, keys: list[str]) -> Any: ...


class RedisPy:
    """redis-py with one pipeline; `atomic` uses MULTI, so that no value is read without its TTL."""

    def __init__(self, client: Redis) -> None:
        self.client = client

    async def one_by_one(self, keys: list[str]) -> Any:
        return [await self.client.hgetall(key) for key in keys]

    async def read(self, keys: list[str]) -> Any:
        pipe = self.client.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(key)
        return await pipe.execute()

    async def write(self, values: dict[str, CacheEntry], *, atomic: bool = False) -> Any:
        pipe = self.client.pipeline(transaction=atomic)
        for key, value in values.items():
            pipe.hset(key, mapping=cast("Any", value.fields()))
            pipe.pexpire(key, TTL_MS)
        return await pipe.execute()


class Cashews:
    def __init__(self, cache: Any) -> None:
        self._cache = cache

    async def write(self, values: dict[str, Fields]) -> Any:
        return await self._cache.set_many(values, expire=TTL_MS / 1000)

    async def read(self, keys: list[str]) -> Any:
        return await self._cache.get_many(*keys)


class Aiocache:
    def __init__(self, cache: Any) -> None:
        self._cache = cache

    async def write(self, values: dict[str, Fields]) -> Any:
        return await self._cache.multi_set(list(values.items()), ttl=TTL_MS / 1000)

    async def read(self, keys: list[str]) -> Any:
        return await self._cache.multi_get(keys)


@asynccontextmanager
async def redis_py(url: Secret) -> AsyncIterator[RedisPy]:
    client = Redis.from_url(url.reveal(), decode_responses=True)
    try:
        yield RedisPy(client)
    finally:
        await client.aclose()


@asynccontextmanager
async def libraries(url: Secret) -> AsyncIterator[dict[str, Library]]:
    """Open the installed libraries, by name."""
    async with AsyncExitStack() as stack:
        found: dict[str, Library] = {}
        for name, library, close in _opened(url):
            stack.push_async_callback(close)
            found[name] = library
        yield found


def _opened(url: Secret) -> Iterator[tuple[str, Library, Callable[[], Awaitable[Any]]]]:
    for name, make in (("cashews", _cashews), ("aiocache", _aiocache)):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        yield name, *make(module, url)


def _cashews(module: Any, url: Secret) -> tuple[Library, Callable[[], Awaitable[Any]]]:
    cache = module.Cache()
    cache.setup(url.reveal(), suppress=False, socket_timeout=5)
    return Cashews(cache), cache.close


def _aiocache(module: Any, url: Secret) -> tuple[Library, Callable[[], Awaitable[Any]]]:
    parts = urlsplit(url.reveal())
    serializers = importlib.import_module("aiocache.serializers")
    cache = module.RedisCache(
        endpoint=parts.hostname,
        port=parts.port,
        password=parts.password,
        serializer=serializers.JsonSerializer(),
        timeout=5,
    )
    return Aiocache(cache), cache.close
