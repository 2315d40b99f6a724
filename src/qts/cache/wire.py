"""One connection to a Redis server, shared by all callers of an event loop.

Requests leave in the order they were made and the server answers in that order, so an answer
belongs to the oldest request still waiting. A caller that gives up leaves its place in the
line: its answer is read and dropped, never handed to the next one. When the connection breaks,
everybody in the line is told; a new connection starts with a new line and an empty parser.

    closed ──call──▶ connecting ──▶ open ──cut, or silent for socket_timeout_ms──▶ closed

It exists beside redis-py because a read of four keys takes half the time of its pipeline, and a
batch of ticks a third (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import hiredis

from qts.cache.address import Address, Command, pack
from qts.cache.config import CacheConfig
from qts.cache.store import Busy
from qts.domain import Secret, Unreachable

WAITING_MAX = 1024  # calls in the line; more of them would only wait longer


class Wire:
    """Commands in, replies out; an error the server replied with is returned, not raised."""

    def __init__(self, url: Secret, config: CacheConfig) -> None:
        self._address = Address(url)
        self._silence_s = config.socket_timeout_ms / 1000
        self._connect_s = config.connect_timeout_ms / 1000
        self._line: _Line | None = None
        self._connecting: asyncio.Task[_Line] | None = None
        self.where = self._address.where

    @property
    def waiting(self) -> int:
        return len(self._line.calls) if self._line else 0

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """One write for all commands, one reply for each."""
        line = self._line
        if line is None or line.closed:
            line = await self._connected()
        if len(line.calls) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} calls to {self.where} are waiting already")
        packed = b"".join(map(pack, commands))
        return await line.send(packed, len(commands))

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._line is not None:
            self._line.cut("it was closed")
            await self._line.gone.wait()
            self._line = None

    async def _connected(self) -> _Line:
        """Callers wait for one and the same attempt; none of them can cancel it for the rest."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._attempted)
        return await asyncio.shield(self._connecting)

    def _attempted(self, attempt: asyncio.Task[_Line]) -> None:
        self._connecting = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._line = attempt.result()

    async def _connect(self) -> _Line:
        line: _Line | None = None
        try:
            async with asyncio.timeout(self._connect_s):
                line = await self._open()
                replies = await line.send(*self._address.greeting())
        except BaseException as error:
            if line is not None:
                line.cut("its greeting failed")
            if isinstance(error, TimeoutError | OSError):
                raise Unreachable(f"{self.where} does not answer: {_reason(error)}") from error
            raise
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                line.cut("it was refused")
                raise Unreachable(f"{self.where} refuses us: {reply}")
        return line

    async def _open(self) -> _Line:
        loop, address = asyncio.get_running_loop(), self._address

        def line() -> _Line:
            return _Line(self.where, self._silence_s)

        if address.path:
            return (await loop.create_unix_connection(line, address.path))[1]
        return (await loop.create_connection(line, address.host, address.port, ssl=address.tls))[1]


class _Call:
    __slots__ = ("answer", "missing", "replies", "since")

    def __init__(self, answer: asyncio.Future[list[Any]], missing: int, since: float) -> None:
        self.answer = answer
        self.missing = missing
        self.replies: list[Any] = []
        self.since = since


class _Line(asyncio.Protocol):
    """The open connection and those who wait for an answer on it, oldest first."""

    def __init__(self, where: str, silence_s: float) -> None:
        self.calls: deque[_Call] = deque()
        self.closed = False
        self.gone = asyncio.Event()
        self._where = where
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=self)
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None

    def send(self, packed: bytes, replies: int) -> asyncio.Future[list[Any]]:
        call = _Call(self._loop.create_future(), replies, self._loop.time())
        if self._transport is None or self.closed:
            call.answer.set_exception(Unreachable(f"the connection to {self._where} is closed"))
            return call.answer
        self.calls.append(call)
        self._transport.write(packed)
        if self._watch is None:
            self._watch = self._loop.call_later(self._silence_s, self._look)
        return call.answer

    def cut(self, why: str) -> None:
        if not self.closed:
            self.closed = True
            if self._transport is not None:
                self._transport.abort()
            self._tell_all(Unreachable(f"the connection to {self._where} was cut: {why}"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not self:
                call = self.calls[0]
                call.replies.append(reply)
                call.missing -= 1
                if not call.missing:
                    self.calls.popleft()
                    if not call.answer.done():
                        call.answer.set_result(call.replies)
        except (hiredis.HiredisError, IndexError):
            self.cut("it spoke another protocol")

    def connection_lost(self, error: Exception | None) -> None:
        self.cut(_reason(error) if error else "the server closed it")
        if self._watch is not None:
            self._watch.cancel()
        self.gone.set()

    def _look(self) -> None:
        """Cut a connection that owes an answer for too long: it may never speak again."""
        self._watch = None
        if not self.calls or self.closed:
            return
        left_s = self.calls[0].since + self._silence_s - self._loop.time()
        if left_s <= 0:
            self.cut(f"no answer for {self._silence_s * 1000:.0f} ms")
        else:
            self._watch = self._loop.call_later(left_s, self._look)

    def _tell_all(self, error: Unreachable) -> None:
        while self.calls:
            if not (answer := self.calls.popleft().answer).done():
                answer.set_exception(error)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
