"""Store on a Redis-protocol server: one node over RedisConnection, a cluster over redis-py."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MaxConnectionsError, RedisError, ResponseError

from qts.cache import commands
from qts.cache.config import CacheConfig
from qts.cache.connection import PENDING_MAX, Address, Command, RedisConnection, pack
from qts.cache.exclusive_writer import ExclusiveWriter, ScriptWriter, TokenOf, WriteEntries
from qts.cache.store import BookSides, CountRequest, Fields, Health, StoreBusyError, StoreWrite
from qts.domain import Secret, UnreachableError

# redis-py raises AttributeError when a connection is cut during its handshake, and asyncio of
# Python 3.12 and 3.13 TypeError when one is cut while it is written to.
_CLIENT_ERRORS = (RedisError, OSError, AttributeError, TypeError)


class RedisTransport(Protocol):
    """Delivery of commands to the right server."""

    where: str
    batch: int
    """Keys per script at most."""

    async def send(self, commands: Sequence[Command], *, reads: bool) -> list[Any]:
        """Return a reply for each command, an exception where the server refused it."""
        ...

    async def send_each(self, commands: Iterable[Command]) -> list[Any]:
        """Send writes; a command may be sent before the next one is built."""
        ...

    def writing(self, by_script: ScriptWriter) -> WriteEntries:
        """Return how to write values: by script, or by a faster way."""
        ...

    def hashes(self, keys: Sequence[str]) -> Awaitable[list[Any]]:
        """Return the replies to HGETALL of each key."""
        ...

    async def scan(self, pattern: str) -> list[str]: ...
    async def info(self) -> list[Fields]:
        """Return INFO of every server that holds keys."""
        ...

    def pool_use(self) -> float: ...
    async def close(self) -> None: ...


class RedisStore:
    """CacheStore over a RedisTransport."""

    def __init__(self, transport: RedisTransport) -> None:
        self._transport = transport
        self.where = transport.where
        self._write = transport.writing(self._by_script)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: Secret, config: CacheConfig) -> AsyncIterator[RedisStore]:
        """Open without connecting: an unreachable server does not prevent the start."""
        transport: RedisTransport = SingleNodeTransport(url, config)
        if config.cluster:
            transport = ClusterTransport(url, config)
        try:
            yield cls(transport)
        finally:
            await transport.close()

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        replies = await self._transport.hashes(keys) if keys else []
        for reply in replies:
            if isinstance(reply, Exception):
                raise commands.error(self.where, reply)
        return [commands.fields(reply) for reply in replies]

    async def read_book(self, key: str, depth: int) -> tuple[Fields, BookSides] | None:
        (reply,) = await self._call([commands.read_book(key, depth)], reads=True)
        return commands.book(reply)

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        return await self._write(entries)

    async def _by_script(
        self, entries: Iterable[StoreWrite], writer: TokenOf | None = None
    ) -> list[bool]:
        requests: list[Command] = []
        places: list[list[int]] = []

        def generate() -> Iterator[Command]:
            for at, command in _in_batches(entries, self._transport.batch, writer):
                places.append(at)
                requests.append(command)
                yield command

        replies = await self._check_replies(
            await self._transport.send_each(generate()), requests, reads=False
        )
        written = [False] * sum(map(len, places))
        for chunk, reply in zip(places, replies, strict=True):
            for at, result in zip(
                chunk, reply if isinstance(reply, list) else [reply], strict=True
            ):
                written[at] = bool(result)
        return written

    async def delete(self, keys: Sequence[str]) -> int:
        return sum(await self._call([("DEL", key) for key in keys], reads=False))

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        (reply,) = await self._call([commands.count(count, known)], reads=False)
        return int(reply)

    async def keys(self, prefix: str) -> list[str]:
        return sorted(await self._transport.scan(f"{prefix}*"))

    async def health(self) -> Health:
        servers = await self._transport.info()
        version = servers[0].get("valkey_version") or servers[0]["redis_version"]

        def total(name: str) -> int:
            return sum(int(server[name]) for server in servers)

        return Health(
            version=version,
            used_memory=total("used_memory"),
            max_memory=total("maxmemory"),
            evicted_keys=total("evicted_keys"),
            clients=total("connected_clients"),
            pool_use=self._transport.pool_use(),
        )

    async def _call(self, requests: Sequence[Command], *, reads: bool) -> list[Any]:
        if not requests:
            return []
        return await self._check_replies(
            await self._transport.send(requests, reads=reads), requests, reads=reads
        )

    async def _check_replies(
        self, replies: list[Any], requests: Sequence[Command], *, reads: bool
    ) -> list[Any]:
        """Send the text of scripts that the server lacks; raise its refusals."""
        missing = [at for at, reply in enumerate(replies) if commands.is_missing_script(reply)]
        if missing:
            retried = [commands.with_text(requests[at]) for at in missing]
            for at, reply in zip(
                missing, await self._transport.send(retried, reads=reads), strict=True
            ):
                replies[at] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise commands.error(self.where, reply)
        return replies


def _in_batches(
    entries: Iterable[StoreWrite], size: int, writer: TokenOf | None
) -> Iterator[tuple[list[int], Command]]:
    """Yield each command with the positions of its entries; a layout shares commands."""
    groups: dict[Any, tuple[list[int], list[StoreWrite]]] = {}

    def written(group: list[StoreWrite]) -> Command:
        named = group[0].layout
        return commands.write(group, writer(named) if writer and named else None)

    for at, entry in enumerate(entries):
        if entry.sides is not None:
            yield [at], commands.write_book(entry, entry.sides)
            continue
        places, group = groups.setdefault(commands.layout(entry), ([], []))
        places.append(at)
        group.append(entry)
        if len(group) == size:
            del groups[commands.layout(entry)]
            yield places, written(group)
    for places, group in groups.values():
        yield places, written(group)


async def connect(url: Secret, config: CacheConfig) -> Redis:
    """Return a client whose server has replied to PING."""
    try:
        client = Redis.from_url(
            url.reveal(),
            max_connections=config.pool_max,
            socket_timeout=config.socket_timeout_ms / 1000,
            socket_connect_timeout=config.connect_timeout_ms / 1000,
            client_name="qts",
        )
    except ValueError as error:
        raise UnreachableError(f"invalid cache URL: {error}") from None
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        await client.aclose()
        raise UnreachableError(f"no reply from the cache server: {error}") from error
    return client


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
