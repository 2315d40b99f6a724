"""Transports of Redis commands: one server over RedisConnection, a cluster over redis-py."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MaxConnectionsError, RedisError, ResponseError

from qts.cache import commands
from qts.cache.config import CacheConfig
from qts.cache.connection import PENDING_MAX, Address, Command, RedisConnection, pack
from qts.cache.exclusive_writer import ExclusiveWriter, ScriptWriter, WriteEntries
from qts.cache.store import Fields, StoreBusyError
from qts.domain import Secret, UnreachableError

# redis-py raises AttributeError when a connection is cut during its handshake, and asyncio of
# Python 3.12 and 3.13 TypeError when one is cut while it is written to.
_CLIENT_ERRORS = (RedisError, OSError, AttributeError, TypeError)


class ClusterTransport:
    """Cluster over redis-py. A script writes one value: others may be on another node."""

    batch = 1

    def __init__(self, url: Secret, config: CacheConfig) -> None:
        try:
            self._client = RedisCluster.from_url(
                url.reveal(),
                max_connections=config.pool_max,
                socket_timeout=config.socket_timeout_ms / 1000,
                socket_connect_timeout=config.connect_timeout_ms / 1000,
                # One retry after the slot map was reloaded; the caller has the timeout.
                retry=Retry(NoBackoff(), 1),
                protocol=2,
                decode_responses=True,
                client_name="qts",
            )
        except (RedisError, ValueError) as error:
            raise UnreachableError(f"invalid cache URL: {error}") from None
        self._pool_max = config.pool_max
        self.where = f"the cluster of {Address(url).where}"

    async def send(self, requests: Sequence[Command], *, reads: bool) -> list[Any]:  # noqa: ARG002
        try:
            pipeline = self._client.pipeline()
            for command in requests:
                pipeline.execute_command(*command)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except _CLIENT_ERRORS as error:
            raise self._translate(error) from error
        for reply in replies:
            if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
                raise self._translate(reply)
        return replies

    async def send_each(self, requests: Iterable[Command]) -> list[Any]:
        return await self.send(list(requests), reads=False)

    def writing(self, by_script: ScriptWriter) -> WriteEntries:
        return by_script

    async def hashes(self, keys: Sequence[str]) -> list[Any]:
        return await self.send([("HGETALL", key) for key in keys], reads=True)

    async def scan(self, pattern: str) -> list[str]:
        try:
            return [key async for key in self._client.scan_iter(match=pattern, count=1000)]
        except _CLIENT_ERRORS as error:
            raise self._translate(error) from error

    async def info(self) -> list[Fields]:
        try:
            infos = await self._client.info(target_nodes=RedisCluster.PRIMARIES)
        except _CLIENT_ERRORS as error:
            raise self._translate(error) from error
        return list(infos.values())

    def pool_use(self) -> float:
        return max((len(node._connections) for node in self._client.get_nodes()), default=0) / (
            self._pool_max
        )

    async def close(self) -> None:
        await self._client.aclose()

    def _translate(self, error: Exception) -> Exception:
        if isinstance(error, MaxConnectionsError):
            return StoreBusyError(
                f"all {self._pool_max} connections to a node of the cluster are in use"
            )
        return UnreachableError(f"no reply from {self.where}: {str(error) or type(error).__name__}")


class SingleNodeTransport:
    """One server with separate connections, so that reads never queue behind writes."""

    batch = 25
    """Small enough that a read waits briefly for a script, large enough to keep the server busy."""

    def __init__(self, url: Secret, config: CacheConfig) -> None:
        self._reads = RedisConnection(url, config)
        self._writes = RedisConnection(url, config)
        self._prefix = config.prefix
        self._spin_s = config.spin_us / 1_000_000
        self.where = self._reads.where

    async def send(self, requests: Sequence[Command], *, reads: bool) -> list[Any]:
        return await (self._reads if reads else self._writes).call(requests)

    async def send_each(self, requests: Iterable[Command]) -> list[Any]:
        return await self._writes.send_pieces((pack(command), 1) for command in requests)

    def writing(self, by_script: ScriptWriter) -> WriteEntries:
        return ExclusiveWriter(self._writes, self._prefix, by_script).write

    def hashes(self, keys: Sequence[str]) -> Awaitable[list[Any]]:
        packed = b"".join(map(_pack_hgetall, keys))
        return self._reads.send_pieces(((packed, len(keys)),), self._spin_s)

    async def scan(self, pattern: str) -> list[str]:
        cursor, found = "0", set[str]()
        while True:
            (reply,) = await self._reads.call([("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)])
            if isinstance(reply, Exception):
                raise commands.error(self.where, reply)
            cursor, keys = reply
            found.update(keys)
            if cursor == "0":
                return list(found)

    async def info(self) -> list[Fields]:
        (reply,) = await self._reads.call([("INFO",)])
        if isinstance(reply, Exception):
            raise commands.error(self.where, reply)
        return [commands.info(reply)]

    def pool_use(self) -> float:
        return max(self._reads.pending, self._writes.pending) / PENDING_MAX

    async def close(self) -> None:
        await self._reads.close()
        await self._writes.close()


@functools.lru_cache(8192)
def _pack_hgetall(key: str) -> bytes:
    return pack(("HGETALL", key))
