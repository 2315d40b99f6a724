"""Commands to one Redis server, over wires of our own."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from qts.cache import commands
from qts.cache.address import Command, pack
from qts.cache.claim import ByScript, Claim, Writing
from qts.cache.config import CacheConfig
from qts.cache.store import Fields
from qts.cache.wire import WAITING_MAX, Wire
from qts.domain import Secret


class Direct:
    """One server, two wires: a batch of ticks on its way never stands before a read."""

    batch = 25
    """Few enough that a read never waits long for a script, and the server is not left waiting."""

    def __init__(self, url: Secret, config: CacheConfig) -> None:
        self._reads = Wire(url, config)
        self._writes = Wire(url, config)
        self._prefix = config.prefix
        self._spin_s = config.spin_us / 1_000_000
        self.where = self._reads.where

    async def send(self, asked: Sequence[Command], *, reads: bool) -> list[Any]:
        return await (self._reads if reads else self._writes).call(asked)

    async def send_each(self, asked: Iterable[Command]) -> list[Any]:
        return await self._writes.say((pack(command), 1) for command in asked)

    def writing(self, by_script: ByScript) -> Writing:
        return Claim(self._writes, self._prefix, by_script).write

    def hashes(self, keys: Sequence[str]) -> Awaitable[list[Any]]:
        packed = b"".join(map(_pack_hgetall, keys))
        return self._reads.say(((packed, len(keys)),), self._spin_s)

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
        return max(self._reads.waiting, self._writes.waiting) / WAITING_MAX

    async def close(self) -> None:
        await self._reads.close()
        await self._writes.close()


@functools.lru_cache(8192)
def _pack_hgetall(key: str) -> bytes:
    return pack(("HGETALL", key))
