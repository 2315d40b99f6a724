"""TCP proxy for tests that cut connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class TcpProxy:
    """Proxy that forwards in both directions; `cut` ends the open connections.

    While `is_blocked` it ends every connection at once. The target may be a Unix socket.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.is_blocked = False

    @classmethod
    @asynccontextmanager
    async def to(cls, target: str) -> AsyncIterator[TcpProxy]:
        proxy = cls(target)
        async with await asyncio.start_server(proxy._on_connect, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            if proxy._target.scheme == "unix":
                proxy.url = f"redis://127.0.0.1:{port}"
            else:
                proxy.url = proxy._target._replace(netloc=f"127.0.0.1:{port}").geturl()
            yield proxy
            proxy.cut()
            if proxy._tasks:
                await asyncio.wait(proxy._tasks)

    def cut(self) -> int:
        """Abort all connections; return how many there were."""
        count = len(self._ends) // 2
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()
        return count

    async def _on_connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self.is_blocked:
            back.transport.abort()
            return
        host, port = self._target.hostname, self._target.port
        if self._target.scheme == "unix":
            far, out = await asyncio.open_unix_connection(self._target.path)
        else:
            far, out = await asyncio.open_connection(host, port)
        self._ends.update((back, out))
        for source, sink in ((near, out), (far, back)):
            task = asyncio.create_task(self._forward(source, sink, (out, back)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
        for end in both:
            self._ends.discard(end)
            end.transport.abort()
