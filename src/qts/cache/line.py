"""An open connection: what is written on it, and who waits for which answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import hiredis

from qts.domain import Unreachable

_PIECE = 65_536
_SKIPPED = 15  # calls that do not look on the spot after one that looked in vain


class Call:
    __slots__ = ("answer", "missing", "replies", "since")

    def __init__(self, answer: asyncio.Future[list[Any]], since: float) -> None:
        self.answer = answer
        self.missing = 0
        self.replies: list[Any] = []
        self.since = since


class Line(asyncio.Protocol):
    """The open connection and those who wait for an answer on it, oldest first."""

    def __init__(self, where: str, silence_s: float) -> None:
        self.calls: deque[Call] = deque()
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
        call = Call(self._loop.create_future(), self._loop.time())
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
        if self._file is None or self._transport is None or self._transport.is_closing():
            return
        if self._spins_skipped:
            self._spins_skipped -= 1
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
        self.cut(reason(error) if error else "the server closed it")
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


def reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
