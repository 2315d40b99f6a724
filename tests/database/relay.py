"""TCP relay before PostgreSQL that can change responses or stop forwarding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlsplit

from qts.domain import Secret


class Relay:
    """Relay on the loopback interface that forwards data in both directions."""

    def __init__(self, target: Secret, change: Callable[[bytes], bytes]) -> None:
        self._target = urlsplit(target.reveal())
        self._change = change
        self._ways: set[asyncio.Task[None]] = set()
        self._silent: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._open: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self.url = target

    @classmethod
    @asynccontextmanager
    async def to(
        cls, target: Secret, change: Callable[[bytes], bytes] = lambda data: data
    ) -> AsyncIterator[Relay]:
        relay = cls(target, change)
        async with await asyncio.start_server(relay._serve, "127.0.0.1", 0) as server:
            login, at_sign, _ = relay._target.netloc.rpartition("@")
            netloc = f"{login}{at_sign}127.0.0.1:{server.sockets[0].getsockname()[1]}"
            relay.url = Secret(relay._target._replace(netloc=netloc, query="").geturl())
            try:
                yield relay
            finally:
                relay._cut()
                await asyncio.gather(*relay._ways, return_exceptions=True)

    def fall_silent(self) -> int:
        """Stop forwarding on the open connections without closing them; return how many."""
        for way in self._ways:
            way.cancel()
        self._silent, self._open = self._open, []
        return len(self._silent)

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await self._connect()
        self._open.append((answers, requests))
        for way in (self._pass(client, requests), self._pass(server, answers)):
            self._ways.add(asyncio.create_task(way))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        options = dict(parse_qsl(self._target.query))
        port = self._target.port or int(options.get("port", 5432))
        if self._target.hostname:
            return await asyncio.open_connection(self._target.hostname, port)
        return await asyncio.open_unix_connection(f"{options['host']}/.s.PGSQL.{port}")

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(self._change(data))
        writer.close()

    def _cut(self) -> None:
        for pair in self._open + self._silent:
            for writer in pair:
                writer.close()
