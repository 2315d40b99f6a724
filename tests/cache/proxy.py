"""A TCP proxy with faults on demand: late, silent, cut in the middle, reset."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from urllib.parse import parse_qsl, urlsplit

from qts.domain import Secret


class Proxy:
    """Listens on the loopback. What is set holds for open connections too, from the next byte.

    pass on             the default; `heal()` comes back to it
    delay_s, jitter_s   every piece of an answer comes later by this
    silent              nothing is passed on any more, nothing is closed
    cut_after           each connection is cut when so many bytes of answers have passed
    refusing            new connections are reset at once
    reset_all()         open connections are reset, as by a dying machine
    """

    def __init__(self, host: str, port: int, path: str | None = None) -> None:
        self._target = (host, port, path)
        self._loop = asyncio.get_running_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._ways: set[asyncio.Task[None]] = set()
        self._random = random.Random(7)  # noqa: S311 - the same jitter each time
        self.port = 0
        self.connections = 0
        self.heal()

    def heal(self) -> None:
        self.delay_s = 0.0
        self.jitter_s = 0.0
        self.silent = False
        self.cut_after: int | None = None
        self.refusing = False

    @classmethod
    @asynccontextmanager
    async def to(cls, host: str, port: int, path: str | None = None) -> AsyncIterator[Proxy]:
        proxy = cls(host, port, path)
        async with await asyncio.start_server(proxy._serve, "127.0.0.1", 0) as server:
            proxy.port = server.sockets[0].getsockname()[1]
            try:
                yield proxy
            finally:
                proxy.reset_all()
                for way in proxy._ways:
                    way.cancel()
                await asyncio.gather(*proxy._ways, return_exceptions=True)

    @classmethod
    @asynccontextmanager
    async def in_thread(cls, url: Secret) -> AsyncIterator[Proxy]:
        """Run in a thread with a separate loop: the loop of the test may be blocked."""
        ready: Future[tuple[Proxy, Callable[[], object]]] = Future()

        async def serve() -> None:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            async with cls.to_url(url) as proxy:
                ready.set_result((proxy, lambda: loop.call_soon_threadsafe(stop.set)))
                await stop.wait()

        thread = asyncio.create_task(asyncio.to_thread(asyncio.run, serve()))
        proxy, stop = await asyncio.wrap_future(ready)
        try:
            yield proxy
        finally:
            stop()
            await thread

    @classmethod
    def to_url(cls, url: Secret) -> AbstractAsyncContextManager[Proxy]:
        """Before the server of this URL; `url_of` names it through the proxy."""
        parts = urlsplit(url.reveal())
        path = parts.path if parts.scheme == "unix" else None
        return cls.to(parts.hostname or "127.0.0.1", parts.port or 6379, path)

    def url_of(self, url: Secret) -> Secret:
        parts = urlsplit(url.reveal())
        login, at_sign, _ = parts.netloc.rpartition("@")
        place = f"{login}{at_sign}127.0.0.1:{self.port}"
        if parts.scheme == "unix":
            number = dict(parse_qsl(parts.query)).get("db", "0")
            return Secret(f"redis://{place}/{number}")
        return Secret(parts._replace(netloc=place).geturl())

    def reset_all(self) -> int:
        """How many connections were open, both halves counted."""
        count = len(self._writers)
        if asyncio.get_running_loop() is self._loop:
            self._reset_open()
        else:
            self._loop.call_soon_threadsafe(self._reset_open)
        return count

    def _reset_open(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refusing:
            _reset(answers)
            return
        try:
            server, requests = await self._connect()
        except OSError:
            _reset(answers)
            return
        pair = (requests, answers)
        self._writers.update(pair)
        for way in (
            self._pass(client, requests, pair, is_answer=False),
            self._pass(server, answers, pair, is_answer=True),
        ):
            task = asyncio.create_task(way)
            self._ways.add(task)
            task.add_done_callback(self._ways.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port, path = self._target
        if path is not None:
            return await asyncio.open_unix_connection(path)
        return await asyncio.open_connection(host, port)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        is_answer: bool,
    ) -> None:
        passed = 0
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.silent:
                    continue
                if is_answer and (self.delay_s or self.jitter_s):
                    await asyncio.sleep(self.delay_s + self._random.random() * self.jitter_s)
                if is_answer and self.cut_after is not None:
                    data = data[: max(0, self.cut_after - passed)]
                writer.write(data)
                passed += len(data)
                if is_answer and self.cut_after is not None and passed >= self.cut_after:
                    await writer.drain()
                    break
        for each in pair:
            self._writers.discard(each)
            each.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, so that the other side sees an error and not an end."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.family == socket.AF_INET:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
