"""The store on a Redis-protocol server: one of its own, or a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from qts.cache import commands
from qts.cache.address import Command
from qts.cache.config import CacheConfig
from qts.cache.entry import BookSides
from qts.cache.exclusive_writer import ScriptWriter, Writer, Writing
from qts.cache.store import CountRequest, Fields, Health, StoreWrite
from qts.cache.transports import SingleNodeTransport
from qts.domain import Secret, UnreachableError


class RedisTransport(Protocol):
    """Brings commands to the right server."""

    where: str
    batch: int
    """How many keys one script may touch."""

    async def send(self, commands: Sequence[Command], *, reads: bool) -> list[Any]:
        """A reply for each, an exception where the server refused one."""
        ...

    async def send_each(self, commands: Iterable[Command]) -> list[Any]:
        """The same for writes; a command may be on its way before the next one is made."""
        ...

    def writing(self, by_script: ScriptWriter) -> Writing:
        """How values are written: by script, or better where there is a way."""
        ...

    def hashes(self, keys: Sequence[str]) -> Awaitable[list[Any]]:
        """The same for HGETALL of each key."""
        ...

    async def scan(self, pattern: str) -> list[str]: ...
    async def info(self) -> list[Fields]:
        """Of every server that holds keys."""
        ...

    def pool_use(self) -> float: ...
    async def close(self) -> None: ...


class RedisStore:
    """A Store; see there."""

    def __init__(self, sender: RedisTransport) -> None:
        self._sender = sender
        self.where = sender.where
        self._write = sender.writing(self._by_script)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: Secret, config: CacheConfig) -> AsyncIterator[RedisStore]:
        """Nothing is said before the first call: a server that is away does not stop a start."""
        sender: RedisTransport = SingleNodeTransport(url, config)
        if config.cluster:
            from qts.cache.transports import ClusterTransport

            sender = ClusterTransport(url, config)
        try:
            yield cls(sender)
        finally:
            await sender.close()

    async def read(self, keys: Sequence[str]) -> list[Fields | None]:
        replies = await self._sender.hashes(keys) if keys else []
        for reply in replies:
            if isinstance(reply, Exception):
                raise commands.error(self.where, reply)
        return [commands.fields(reply) for reply in replies]

    async def read_book(self, key: str, depth: int) -> tuple[Fields, BookSides] | None:
        (reply,) = await self._ask([commands.read_book(key, depth)], reads=True)
        return commands.book(reply)

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        return await self._write(entries)

    async def _by_script(
        self, entries: Iterable[StoreWrite], writer: Writer | None = None
    ) -> list[bool]:
        asked: list[Command] = []
        places: list[list[int]] = []

        def making() -> Iterator[Command]:
            for at, command in _in_batches(entries, self._sender.batch, writer):
                places.append(at)
                asked.append(command)
                yield command

        replies = await self._judged(await self._sender.send_each(making()), asked, reads=False)
        written = [False] * sum(map(len, places))
        for chunk, reply in zip(places, replies, strict=True):
            for at, told in zip(chunk, reply if isinstance(reply, list) else [reply], strict=True):
                written[at] = bool(told)
        return written

    async def delete(self, keys: Sequence[str]) -> int:
        return sum(await self._ask([("DEL", key) for key in keys], reads=False))

    async def count(self, count: CountRequest, known: Collection[str] | None = None) -> int:
        (reply,) = await self._ask([commands.count(count, known)], reads=False)
        return int(reply)

    async def keys(self, prefix: str) -> list[str]:
        return sorted(await self._sender.scan(f"{prefix}*"))

    async def health(self) -> Health:
        servers = await self._sender.info()
        version = servers[0].get("valkey_version") or servers[0]["redis_version"]

        def total(name: str) -> int:
            return sum(int(server[name]) for server in servers)

        return Health(
            version=version,
            used_memory=total("used_memory"),
            max_memory=total("maxmemory"),
            evicted_keys=total("evicted_keys"),
            clients=total("connected_clients"),
            pool_use=self._sender.pool_use(),
        )

    async def _ask(self, asked: Sequence[Command], *, reads: bool) -> list[Any]:
        if not asked:
            return []
        return await self._judged(await self._sender.send(asked, reads=reads), asked, reads=reads)

    async def _judged(
        self, replies: list[Any], asked: Sequence[Command], *, reads: bool
    ) -> list[Any]:
        """Scripts the server has forgotten are told to it; what it refused is raised."""
        forgotten = [at for at, reply in enumerate(replies) if commands.is_forgotten(reply)]
        if forgotten:
            again = [commands.with_text(asked[at]) for at in forgotten]
            for at, reply in zip(
                forgotten, await self._sender.send(again, reads=reads), strict=True
            ):
                replies[at] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise commands.error(self.where, reply)
        return replies


def _in_batches(
    entries: Iterable[StoreWrite], size: int, writer: Writer | None
) -> Iterator[tuple[list[int], Command]]:
    """Each command with the places of its entries; those of one layout share one."""
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
        raise UnreachableError(f"the cache URL is not understood: {error}") from None
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        await client.aclose()
        raise UnreachableError(f"the cache server does not answer: {error}") from error
    return client
