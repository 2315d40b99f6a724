"""Connection to a Redis server, shared by all callers of an event loop.

The server replies in the order of the requests, so a reply belongs to the oldest pending call. The
reply to a cancelled call is read and discarded. When the connection breaks, every pending call
fails; a new connection starts with an empty queue and a new parser.

    closed ──call──▶ connecting ──▶ open ──cut, or no reply for socket_timeout_ms──▶ closed

It exists beside redis-py because a read of four keys takes half the time of its pipeline, and a
batch of ticks a fifth (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import functools
import os
import select
import ssl
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url

from qts.cache.config import CacheConfig
from qts.cache.store import StoreBusyError
from qts.domain import Secret, UnreachableError

Command = Sequence[str | bytes | int]


def pack(command: Command) -> bytes:
    """Encode a command in the Redis protocol."""
    # hiredis declares its parameter as a tuple of one element.
    return cast("bytes", hiredis.pack_command(cast("Any", tuple(command))))


class Address:
    """redis://, rediss:// or unix:// URL, parsed by redis-py."""

    def __init__(self, url: Secret) -> None:
        try:
            options: dict[str, Any] = dict(parse_url(url.reveal()))
        except ValueError as error:
            raise UnreachableError(f"invalid cache URL: {error}") from None
        self.path: str | None = options.get("path")
        self.host: str = options.get("host", "localhost")
        self.port: int = options.get("port", 6379)
        secure = options.get("connection_class") is SSLConnection
        self.tls = ssl.create_default_context() if secure else None
        self.where = self.path or f"{self.host}:{self.port}"
        self._database = int(options.get("db") or 0)
        self._login = [options[part] for part in ("username", "password") if options.get(part)]

    def handshake(self) -> tuple[bytes, int]:
        """Return the first commands of a connection and their number of replies."""
        commands: list[Command] = [("CLIENT", "SETNAME", "qts")]
        if self._login:
            commands.insert(0, ("AUTH", *self._login))
        if self._database:
            commands.append(("SELECT", self._database))
        return b"".join(map(pack, commands)), len(commands)


def reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


_EXPLORE_EVERY = 32  # one call in this many tries the other way
_STEP_S = 2e-6  # change of a median estimate per call, whatever the duration
_SLEEP_ADVANTAGE = 0.75  # sleeping must take less than this share of spinning


class SpinPolicy:
    """Choice between spinning and sleeping for a reply: whichever was faster recently.

    A nearby server on a separate CPU replies sooner than a sleeping process is woken. A distant
    one, or one that shares this CPU, replies later because of the spinning.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._medians_s = [0.0, 0.0]  # sleeping, spinning

    def choose(self) -> bool:
        """Return whether to spin for the next reply."""
        self._calls += 1
        spins = self._medians_s[True] * _SLEEP_ADVANTAGE < self._medians_s[False]
        return spins if self._calls % _EXPLORE_EVERY else not spins

    def record(self, spun: bool, duration_s: float) -> None:
        self._medians_s[spun] += _STEP_S if duration_s > self._medians_s[spun] else -_STEP_S


Piece = tuple[bytes, int]  # data, and its number of replies


class PendingCall:
    __slots__ = ("expected", "future", "replies", "sent_at")

    def __init__(self, future: asyncio.Future[list[Any]], sent_at: float) -> None:
        self.future, self.sent_at, self.expected = future, sent_at, 0
        self.replies: list[Any] = []


class RedisProtocol(asyncio.Protocol):
    """Open connection with its pending calls, oldest first."""

    def __init__(self, where: str, reply_timeout_s: float) -> None:
        self.calls: deque[PendingCall] = deque()
        self.closed = False
        self.lost = asyncio.Event()
        self._where, self._reply_timeout_s = where, reply_timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=self)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._file: int | None = None  # socket, if it may be used beside the transport
        self._poll = select.poll()
        self.spin_policy = SpinPolicy()

    def send(self, pieces: Iterable[Piece]) -> asyncio.Future[list[Any]]:
        call = PendingCall(self._loop.create_future(), self._loop.time())
        if self._transport is None or self.closed:
            call.future.set_exception(
                UnreachableError(f"the connection to {self._where} is closed")
            )
            return call.future
        try:
            for piece, replies in pieces:
                self._write(self._transport, piece)
                call.expected += replies
        except BaseException:  # of the iterator; pieces already sent get replies
            call.future.cancel()
            raise
        finally:
            if call.expected:
                self.calls.append(call)
            elif not call.future.done():
                call.future.set_result([])
        if self._timer is None:
            self._timer = self._loop.call_later(self._reply_timeout_s, self._check_timeout)
        return call.future

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write to the socket directly, which is faster, unless the transport has a backlog."""
        sent = 0
        if not (self._file is None or transport.get_write_buffer_size() or transport.is_closing()):
            try:
                sent = os.write(self._file, data)
            except OSError:
                sent = 0  # full or cut: the transport handles it
        if sent < len(data):
            transport.write(data[sent:])

    def spin(self, future: asyncio.Future[list[Any]], spin_s: float) -> None:
        """Read replies from the socket, as the loop would do later, for at most `spin_s`."""
        if self._file is None or self._transport is None or self._transport.is_closing():
            return
        deadline = time.perf_counter() + spin_s
        readable = self._poll.poll
        while not future.done() and time.perf_counter() < deadline:
            if not readable(0):  # cheaper than the exception of an empty read
                continue
            try:
                data = os.read(self._file, 65_536)
            except OSError:
                return  # the loop will report it
            if not data:
                return
            self.data_received(data)

    def cut(self, cause: str) -> None:
        if not self.closed:
            self.closed, self._file = True, None
            if self._transport is not None:
                self._transport.abort()
            error = UnreachableError(f"the connection to {self._where} was cut: {cause}")
            while self.calls:
                if not (future := self.calls.popleft().future).done():
                    future.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._transport.set_write_buffer_limits(0)  # uvloop then sends at once
        if transport.get_extra_info("ssl_object") is None:  # TLS data is read by the loop only
            self._file = transport.get_extra_info("socket").fileno()
            self._poll.register(self._file, select.POLLIN)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not self:
                call = self.calls[0]
                call.replies.append(reply)
                if len(call.replies) == call.expected:
                    self.calls.popleft()
                    if not call.future.done():
                        call.future.set_result(call.replies)
        except (hiredis.HiredisError, IndexError):
            self.cut("not the Redis protocol")

    def connection_lost(self, error: Exception | None) -> None:
        self.cut(reason(error) if error else "the server closed it")
        if self._timer is not None:
            self._timer.cancel()
        self.lost.set()

    def _check_timeout(self) -> None:
        """Cut a connection whose oldest call has waited too long."""
        self._timer = None
        if self.calls and not self.closed:
            left_s = self.calls[0].sent_at + self._reply_timeout_s - self._loop.time()
            if left_s <= 0:
                self.cut(f"no reply for {self._reply_timeout_s * 1000:.0f} ms")
            else:
                self._timer = self._loop.call_later(left_s, self._check_timeout)


PENDING_MAX = 1024  # calls per connection


class RedisConnection:
    """Commands in, replies out; an error reply of the server is returned, not raised."""

    def __init__(self, url: Secret, config: CacheConfig) -> None:
        self._address = Address(url)
        self._reply_timeout_s = config.socket_timeout_ms / 1000
        self._connect_timeout_s = config.connect_timeout_ms / 1000
        self._protocol: RedisProtocol | None = None
        self._connecting: asyncio.Task[RedisProtocol] | None = None
        self.where = self._address.where

    @property
    def protocol(self) -> RedisProtocol | None:
        """The connection while it is open, else None."""
        return None if self._protocol is None or self._protocol.closed else self._protocol

    @property
    def pending(self) -> int:
        return len(self._protocol.calls) if self._protocol else 0

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """Send all commands in one write; return one reply for each."""
        return await self.send_pieces(((b"".join(map(pack, commands)), len(commands)),))

    async def send_pieces(self, pieces: Iterable[Piece], spin_s: float = 0.0) -> list[Any]:
        """Send one write per piece: the server works on the first while the second is encoded.

        With `spin_s`, spin for the reply for at most that long, if spinning was faster recently.
        """
        protocol = self._protocol
        if protocol is None or protocol.closed:
            protocol = await self._connected()
        if len(protocol.calls) >= PENDING_MAX:
            raise StoreBusyError(f"{PENDING_MAX} calls to {self.where} are pending")
        if not spin_s:
            return await protocol.send(pieces)
        spins, started_s = protocol.spin_policy.choose(), time.perf_counter()
        future = protocol.send(pieces)
        if spins:
            protocol.spin(future, spin_s)
        replies = await future
        protocol.spin_policy.record(spins, time.perf_counter() - started_s)
        return replies

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._protocol is not None:
            self._protocol.cut("it was closed")
            await self._protocol.lost.wait()
            self._protocol = None

    async def _connected(self) -> RedisProtocol:
        """Wait for the connection attempt that all callers share; none can cancel it."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._on_connected)
        return await asyncio.shield(self._connecting)

    def _on_connected(self, attempt: asyncio.Task[RedisProtocol]) -> None:
        self._connecting = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._protocol = attempt.result()

    async def _connect(self) -> RedisProtocol:
        protocol: RedisProtocol | None = None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                protocol = await self._open()
                packed, count = self._address.handshake()
                replies = await protocol.send(((packed, count),))
        except BaseException as error:
            if protocol is not None:
                protocol.cut("its handshake failed")
            if isinstance(error, TimeoutError | OSError):
                raise UnreachableError(f"no reply from {self.where}: {reason(error)}") from error
            raise
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                protocol.cut("it was refused")
                raise UnreachableError(f"{self.where} refused the handshake: {reply}")
        return protocol

    async def _open(self) -> RedisProtocol:
        loop, address = asyncio.get_running_loop(), self._address
        protocol = functools.partial(RedisProtocol, self.where, self._reply_timeout_s)
        if address.path:
            return (await loop.create_unix_connection(protocol, address.path))[1]
        return (
            await loop.create_connection(protocol, address.host, address.port, ssl=address.tls)
        )[1]
