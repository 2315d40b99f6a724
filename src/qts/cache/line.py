"""An open connection: what is written on it, and who waits for which answer."""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import hiredis

from qts.cache.address import reason
from qts.cache.looks import Looks
from qts.domain import UnreachableError

Piece = tuple[bytes, int]  # what is written, and how many replies it gets


class Call:
    __slots__ = ("answer", "owed", "replies", "since")

    def __init__(self, answer: asyncio.Future[list[Any]], since: float) -> None:
        self.answer, self.since, self.owed = answer, since, 0
        self.replies: list[Any] = []


class Line(asyncio.Protocol):
    """The open connection and those who wait for an answer on it, oldest first."""

    def __init__(self, where: str, silence_s: float) -> None:
        self.calls: deque[Call] = deque()
        self.closed = False
        self.gone = asyncio.Event()
        self._where, self._silence_s = where, silence_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=self)
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._file: int | None = None  # of the socket, where it may be used beside the transport
        self._poll = select.poll()
        self.looks = Looks()

    def send(self, pieces: Iterable[Piece]) -> asyncio.Future[list[Any]]:
        call = Call(self._loop.create_future(), self._loop.time())
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
