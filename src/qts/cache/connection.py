"""An open connection: what is written on it, and who waits for which answer.

Whether an answer is looked for on the spot or slept for: what was faster lately.

On a CPU of its own a server near by answers sooner than a sleeping process is woken. One that is
far away, or has to share this CPU, answers later for being waited for like that.

One connection to a Redis server, shared by all callers of an event loop.

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
import os
import select
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

import hiredis

from qts.cache.address import Address, Command, pack, reason
from qts.cache.config import CacheConfig
from qts.cache.store import StoreBusyError
from qts.domain import Secret, UnreachableError

_OTHER = 32  # of so many calls one tries the other way
_STEP_S = 2e-6  # a median moves by so much with each call, however long that was held up
_CLEARLY = 0.75  # to sleep must be faster by so much


class SpinPolicy:
    """Of one connection."""

    def __init__(self) -> None:
        self._calls = 0
        self._medians_s = [0.0, 0.0]  # slept for, looked for

    def choose(self) -> bool:
        """Look for the next one?"""
        self._calls += 1
        pays = self._medians_s[True] * _CLEARLY < self._medians_s[False]
        return pays if self._calls % _OTHER else not pays

    def note(self, looked: bool, took_s: float) -> None:
        self._medians_s[looked] += _STEP_S if took_s > self._medians_s[looked] else -_STEP_S


Piece = tuple[bytes, int]  # what is written, and how many replies it gets


class PendingCall:
    __slots__ = ("answer", "owed", "replies", "since")

    def __init__(self, answer: asyncio.Future[list[Any]], since: float) -> None:
        self.answer, self.since, self.owed = answer, since, 0
        self.replies: list[Any] = []


class RedisProtocol(asyncio.Protocol):
    """The open connection and those who wait for an answer on it, oldest first."""

    def __init__(self, where: str, silence_s: float) -> None:
        self.calls: deque[PendingCall] = deque()
        self.closed = False
        self.gone = asyncio.Event()
        self._where, self._silence_s = where, silence_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=self)
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._file: int | None = None  # of the socket, where it may be used beside the transport
        self._poll = select.poll()
        self.looks = SpinPolicy()

    def send(self, pieces: Iterable[Piece]) -> asyncio.Future[list[Any]]:
        call = PendingCall(self._loop.create_future(), self._loop.time())
        if self._transport is None or self.closed:
            call.answer.set_exception(
                UnreachableError(f"the connection to {self._where} is closed")
            )
            return call.answer
        try:
            for piece, replies in pieces:
                self._write(self._transport, piece)
                call.owed += replies
        except BaseException:  # of who makes the pieces; those that are gone will be answered
            call.answer.cancel()
            raise
        finally:
            if call.owed:
                self.calls.append(call)
            elif not call.answer.done():
                call.answer.set_result([])
        if self._watch is None:
            self._watch = self._loop.call_later(self._silence_s, self._look)
        return call.answer

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        """To the socket itself, which takes less time, unless something waits before it."""
        sent = 0
        if not (self._file is None or transport.get_write_buffer_size() or transport.is_closing()):
            try:
                sent = os.write(self._file, data)
            except OSError:
                sent = 0  # full, or cut: the transport waits, or tells
        if sent < len(data):
            transport.write(data[sent:])

    def spin(self, answer: asyncio.Future[list[Any]], spin_s: float) -> None:
        """Read what has come already, as the loop would do later."""
        if self._file is None or self._transport is None or self._transport.is_closing():
            return
        over = time.perf_counter() + spin_s
        has_come = self._poll.poll
        while not answer.done() and time.perf_counter() < over:
            if not has_come(0):  # a read in vain would make an exception, which takes longer
                continue
            try:
                data = os.read(self._file, 65_536)
            except OSError:
                return  # the loop will find it and tell
            if not data:
                return
            self.data_received(data)

    def cut(self, why: str) -> None:
        if not self.closed:
            self.closed, self._file = True, None
            if self._transport is not None:
                self._transport.abort()
            error = UnreachableError(f"the connection to {self._where} was cut: {why}")
            while self.calls:
                if not (answer := self.calls.popleft().answer).done():
                    answer.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        self._transport.set_write_buffer_limits(0)  # uvloop then sends at once, not a turn later
        if transport.get_extra_info("ssl_object") is None:  # what is encrypted only the loop reads
            self._file = transport.get_extra_info("socket").fileno()
            self._poll.register(self._file, select.POLLIN)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not self:
                call = self.calls[0]
                call.replies.append(reply)
                if len(call.replies) == call.owed:
                    self.calls.popleft()
                    if not call.answer.done():
                        call.answer.set_result(call.replies)
        except (hiredis.HiredisError, IndexError):
            self.cut("it spoke another protocol")

    def connection_lost(self, error: Exception | None) -> None:
        self.cut(reason(error) if error else "the server closed it")
        if self._watch is not None:
            self._watch.cancel()
        self.gone.set()

    def _look(self) -> None:
        """Cut a connection that owes an answer for too long: it may never speak again."""
        self._watch = None
        if self.calls and not self.closed:
            left_s = self.calls[0].since + self._silence_s - self._loop.time()
            if left_s <= 0:
                self.cut(f"no answer for {self._silence_s * 1000:.0f} ms")
            else:
                self._watch = self._loop.call_later(left_s, self._look)


WAITING_MAX = 1024  # calls in the line; more of them would only wait longer


class RedisConnection:
    """Commands in, replies out; an error the server replied with is returned, not raised."""

    def __init__(self, url: Secret, config: CacheConfig) -> None:
        self._address = Address(url)
        self._silence_s = config.socket_timeout_ms / 1000
        self._connect_s = config.connect_timeout_ms / 1000
        self._line: RedisProtocol | None = None
        self._connecting: asyncio.Task[RedisProtocol] | None = None
        self.where = self._address.where

    @property
    def line(self) -> RedisProtocol | None:
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
            raise StoreBusyError(f"{WAITING_MAX} calls to {self.where} are waiting already")
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

    async def _connected(self) -> RedisProtocol:
        """Callers wait for one and the same attempt; none of them can cancel it for the rest."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._attempted)
        return await asyncio.shield(self._connecting)

    def _attempted(self, attempt: asyncio.Task[RedisProtocol]) -> None:
        self._connecting = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._line = attempt.result()

    async def _connect(self) -> RedisProtocol:
        line: RedisProtocol | None = None
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

    async def _open(self) -> RedisProtocol:
        loop, address = asyncio.get_running_loop(), self._address
        line = functools.partial(RedisProtocol, self.where, self._silence_s)
        if address.path:
            return (await loop.create_unix_connection(line, address.path))[1]
        return (await loop.create_connection(line, address.host, address.port, ssl=address.tls))[1]
