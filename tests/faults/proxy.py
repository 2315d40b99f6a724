"""Proxy in front of PostgreSQL that cuts a connection at a commit, before or after its effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from qts.domain import Secret

When = Literal["before", "after"]

COMMIT = b"COMMIT\x00"


class CommitProxy:
    """Proxy that forwards both ways; after `spoil` it cuts the connection of the next commit.

    before   the server does not receive the commit
    after    the server commits, and its reply is lost
    """

    def __init__(self, target: Secret) -> None:
        self._target = urlsplit(target.reveal())
        self._spoil: When | None = None
        self._words = COMMIT
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = target
        self.cut = 0

    @classmethod
    @asynccontextmanager
    async def to(cls, target: Secret) -> AsyncIterator[CommitProxy]:
        proxy = cls(target)
        async with await asyncio.start_server(proxy._serve, "127.0.0.1", 0) as server:
            login, at_sign, _ = proxy._target.netloc.rpartition("@")
            netloc = f"{login}{at_sign}127.0.0.1:{server.sockets[0].getsockname()[1]}"
            proxy.url = Secret(proxy._target._replace(netloc=netloc, query="").geturl())
            try:
                yield proxy
            finally:
                for writer in list(proxy._writers):
                    writer.transport.abort()
                await asyncio.gather(*proxy._tasks, return_exceptions=True)

    def spoil(self, when: When, words: bytes = COMMIT) -> None:
        """Cut the connection that next sends COMMIT, or the given words; b"": anything."""
        self._spoil, self._words = when, words

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await self._connect()
        self._writers.update((answers, requests))
        doomed = asyncio.Event()
        for way in (
            self._ask(client, requests, answers, doomed),
            self._answer(server, answers, requests, doomed),
        ):
            task = asyncio.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        options = dict(parse_qsl(self._target.query))
        port = self._target.port or int(options.get("port", 5432))
        if self._target.hostname:
            return await asyncio.open_connection(self._target.hostname, port)
        return await asyncio.open_unix_connection(f"{options['host']}/.s.PGSQL.{port}")

    async def _ask(
        self,
        client: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
        answers: asyncio.StreamWriter,
        doomed: asyncio.Event,
    ) -> None:
        with suppress(OSError):
            while data := await client.read(65536):
                if self._spoil and self._words in data:
                    when, self._spoil = self._spoil, None
                    self.cut += 1
                    if when == "before":
                        break
                    doomed.set()
                requests.write(data)
        if not doomed.is_set():
            self._close(requests, answers)

    async def _answer(
        self,
        server: asyncio.StreamReader,
        answers: asyncio.StreamWriter,
        requests: asyncio.StreamWriter,
        doomed: asyncio.Event,
    ) -> None:
        with suppress(OSError):
            while data := await server.read(65536):
                if doomed.is_set():  # the server has kept it: this is its answer
                    break
                answers.write(data)
        self._close(requests, answers)

    def _close(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            self._writers.discard(writer)
            writer.transport.abort()
