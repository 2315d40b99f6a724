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
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

import hiredis

from qts.cache.address import Address, Command, pack
from qts.cache.config import CacheConfig
from qts.cache.store import Busy
from qts.domain import Secret, Unreachable

_PIECE = 65_536
_SKIPPED = 15  # calls that do not look on the spot after one that looked in vain
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
        return await self.call_packed((b"".join(map(pack, commands)),), len(commands))

    async def call_each(self, commands: Iterable[Command]) -> list[Any]:
        """A write for each: the server works on the first while the second is made."""
        return await self.call_packed(map(pack, commands), 1)

    async def call_packed(
        self, pieces: Iterable[bytes], replies_each: int, spin_s: float = 0.0
    ) -> list[Any]:
        """With `spin_s` the answer is looked for on the spot, so long, before others have a turn.

        A server near by answers in less time than it takes to go to sleep and to be woken.
        """
        line = self._line
        if line is None or line.closed:
            line = await self._connected()
        if len(line.calls) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} calls to {self.where} are waiting already")
        answer = line.send(pieces, replies_each)
        if spin_s:
            line.spin(answer, spin_s)
        return await answer

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
                packed, count = self._address.greeting()
                replies = await line.send((packed,), count)
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

    def __init__(self, answer: asyncio.Future[list[Any]], since: float) -> None:
        self.answer = answer
        self.missing = 0
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
        self._file: int | None = None
        self._spins_skipped = 0

    def send(self, pieces: Iterable[bytes], replies_each: int) -> asyncio.Future[list[Any]]:
        call = _Call(self._loop.create_future(), self._loop.time())
        if self._transport is None or self.closed:
            call.answer.set_exception(Unreachable(f"the connection to {self._where} is closed"))
            return call.answer
        try:
            for piece in pieces:
                self._transport.write(piece)
                call.missing += replies_each
        except BaseException:  # of who makes the pieces; those that are gone will be answered
            call.answer.cancel()
            raise
        finally:
            if call.missing:
                self.calls.append(call)
            elif not call.answer.done():
                call.answer.set_result([])
        if self._watch is None:
            self._watch = self._loop.call_later(self._silence_s, self._look)
        return call.answer

    def spin(self, answer: asyncio.Future[list[Any]], spin_s: float) -> None:
        """Read what has come already, as the loop would do later."""
        if self._file is None or self._spins_skipped:
            self._spins_skipped = max(0, self._spins_skipped - 1)
            return
        over = time.perf_counter() + spin_s
        while not answer.done() and time.perf_counter() < over:
            try:
                data = os.read(self._file, _PIECE)
            except BlockingIOError:
                continue
            except OSError:
                return  # the loop will find it and tell
            if not data:
                return
            self.data_received(data)
        if not answer.done():  # too far away, or it needs this very CPU: looking does not pay now
            self._spins_skipped = _SKIPPED

    def cut(self, why: str) -> None:
        if not self.closed:
            self.closed, self._file = True, None
            if self._transport is not None:
                self._transport.abort()
            self._tell_all(Unreachable(f"the connection to {self._where} was cut: {why}"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        self._transport.set_write_buffer_limits(0)  # uvloop then sends at once, not a turn later
        if transport.get_extra_info("ssl_object") is None:  # what is encrypted only the loop reads
            self._file = transport.get_extra_info("socket").fileno()

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
