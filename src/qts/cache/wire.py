"""One connection to a Redis server, shared by all callers of an event loop.

Requests leave in the order they were made and the server answers in that order, so an answer
belongs to the oldest request still waiting. A caller that gives up leaves its place in the
line: its answer is read and dropped, never handed to the next one. When the connection breaks,
everybody in the line is told; a new connection starts with a new line and an empty parser.

    closed ──call──▶ connecting ──▶ open ──cut, or silent for socket_timeout_ms──▶ closed

It exists beside redis-py because a read of four keys takes half the time of its pipeline, and a
batch of ticks a fifth (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis

from qts.cache.address import Address, Command, pack, reason
from qts.cache.config import CacheConfig
from qts.cache.line import Line, Piece
from qts.cache.store import Busy
from qts.domain import Secret, UnreachableError

WAITING_MAX = 1024  # calls in the line; more of them would only wait longer


class Wire:
    """Commands in, replies out; an error the server replied with is returned, not raised."""

    def __init__(self, url: Secret, config: CacheConfig) -> None:
        self._address = Address(url)
        self._silence_s = config.socket_timeout_ms / 1000
        self._connect_s = config.connect_timeout_ms / 1000
        self._line: Line | None = None
        self._connecting: asyncio.Task[Line] | None = None
        self.where = self._address.where

    @property
    def line(self) -> Line | None:
        """The connection, while it is open."""
        return None if self._line is None or self._line.closed else self._line

    @property
    def waiting(self) -> int:
        return len(self._line.calls) if self._line else 0

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """One write for all commands, one reply for each."""
        return await self.say(((b"".join(map(pack, commands)), len(commands)),))

    async def say(self, pieces: Iterable[Piece], spin_s: float = 0.0) -> list[Any]:
        """A write for each piece: the server works on the first while the second is made.

        With `spin_s` the answer is looked for on the spot, so long at most, before others have a
        turn, where that was faster lately.
        """
        line = self._line
        if line is None or line.closed:
            line = await self._connected()
        if len(line.calls) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} calls to {self.where} are waiting already")
        if not spin_s:
            return await line.send(pieces)
        looks, began_s = line.looks.choose(), time.perf_counter()
        answer = line.send(pieces)
        if looks:
            line.spin(answer, spin_s)
        replies = await answer
        line.looks.note(looks, time.perf_counter() - began_s)
        return replies

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._line is not None:
            self._line.cut("it was closed")
            await self._line.gone.wait()
            self._line = None

    async def _connected(self) -> Line:
        """Callers wait for one and the same attempt; none of them can cancel it for the rest."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._attempted)
        return await asyncio.shield(self._connecting)

    def _attempted(self, attempt: asyncio.Task[Line]) -> None:
        self._connecting = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._line = attempt.result()

    async def _connect(self) -> Line:
        line: Line | None = None
        try:
            async with asyncio.timeout(self._connect_s):
                line = await self._open()
                packed, count = self._address.greeting()
                replies = await line.send(((packed, count),))
        except BaseException as error:
            if line is not None:
                line.cut("its greeting failed")
            if isinstance(error, TimeoutError | OSError):
                raise UnreachableError(f"{self.where} does not answer: {reason(error)}") from error
            raise
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                line.cut("it was refused")
                raise UnreachableError(f"{self.where} refuses us: {reply}")
        return line

    async def _open(self) -> Line:
        loop, address = asyncio.get_running_loop(), self._address
        line = functools.partial(Line, self.where, self._silence_s)
        if address.path:
            return (await loop.create_unix_connection(line, address.path))[1]
        return (await loop.create_connection(line, address.host, address.port, ssl=address.tls))[1]
