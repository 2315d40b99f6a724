"""A piece of wire before a server, for tests that cut it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Wire:
    """Use `to`. Carries everything both ways; `cut` ends it, and new calls get through."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._ends: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def to(cls, target: str) -> AsyncIterator[Wire]:
        wire = cls(target)
        async with await asyncio.start_server(wire._called, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            wire.url = wire._target._replace(netloc=f"127.0.0.1:{port}").geturl()
            yield wire
            wire.cut()
            if wire._carrying:
                await asyncio.wait(wire._carrying)

    def cut(self) -> int:
        """Without a goodbye; answers how many connections there were."""
        count = len(self._ends) // 2
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()
        return count

    async def _called(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        host, port = self._target.hostname, self._target.port
        far, out = await asyncio.open_connection(host, port)
        self._ends.update((back, out))
        for source, sink in ((near, out), (far, back)):
            task = asyncio.create_task(self._carry(source, sink, (out, back)))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry(
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
