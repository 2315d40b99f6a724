"""Simulated dashboard pages in a separate process.

A page requests one state after the other on the WebSocket and its data once a second, as
`page/app.js` does. One more client requests states and never reads.

    stdin    {"address": ..., "token": ..., "pages": 10}, then lines: open, close
    stdout   one line of JSON for each: pages open, states and answers read
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

NEXT = "next"  # any text requests a state
REQUEST_INTERVAL_S = 1.0
UNREAD = b"\x81\x84" + bytes(4) + NEXT.encode()  # its frame, masked with zeros
REQUESTS = (
    "overview",
    "events",
    "orders",
    "outbox",
    "backtests",
    "settings",
    "market?symbol=&bar=5",
)


class PageClientSpec(msgspec.Struct, frozen=True):
    address: str
    token: str
    pages: int


class PageClientCounts(msgspec.Struct, frozen=True):
    pages: int
    states: int
    answers: int


class PageClients:
    """Pages that open and close together."""

    def __init__(self, client: aiohttp.ClientSession, spec: PageClientSpec) -> None:
        self._client = client
        self._spec = spec
        self._open: contextlib.AsyncExitStack | None = None
        self._pages = 0
        self._states = 0
        self._answers = 0

    @property
    def counts(self) -> PageClientCounts:
        return PageClientCounts(self._pages, self._states, self._answers)

    async def login(self) -> None:
        headers = {"Origin": self._spec.address}
        async with self._client.post(
            "/login", json={"token": self._spec.token}, headers=headers
        ) as reply:
            reply.raise_for_status()

    async def open(self) -> None:
        """Open all pages and wait until each has read a state."""
        async with contextlib.AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(_cancelling())
            first_reads = []
            for number in range(self._spec.pages):
                first = asyncio.Event()
                first_reads.append(first.wait())
                tasks.append(asyncio.create_task(self._read_live(first)))
                tasks.append(asyncio.create_task(self._request(REQUESTS[number % len(REQUESTS)])))
            await asyncio.gather(*first_reads)
            await stack.enter_async_context(self._never_reading())
            self._open = stack.pop_all()

    async def close(self) -> None:
        if self._open is not None:
            await self._open.aclose()
            self._open = None

    async def _read_live(self, first: asyncio.Event) -> None:
        headers = {"Origin": self._spec.address}
        async with self._client.ws_connect("/api/live", headers=headers) as page:
            self._pages += 1
            try:
                await page.send_str(NEXT)
                async for _ in page:
                    self._states += 1
                    first.set()
                    await page.send_str(NEXT)
            finally:
                self._pages -= 1

    async def _request(self, path: str) -> None:
        while True:
            async with self._client.get(f"/api/{path}") as reply:
                await reply.read()
                self._answers += reply.status == 200  # other replies are retried
            await asyncio.sleep(REQUEST_INTERVAL_S)

    @contextlib.asynccontextmanager
    async def _never_reading(self) -> AsyncIterator[None]:
        """Request many states with the smallest receive buffer and never read."""
        url = urlsplit(self._spec.address)
        cookies = self._client.cookie_jar.filter_cookies(URL(self._spec.address))
        cookie = "; ".join(f"{name}={each.value}" for name, each in cookies.items())
        request = (
            f"GET /api/live HTTP/1.1\r\nHost: {url.netloc}\r\nOrigin: {self._spec.address}\r\n"
            f"Cookie: {cookie}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (url.hostname, url.port))
            await loop.sock_sendall(connection, request.encode() + 1000 * UNREAD)
            yield
            # Reset, so that unread data does not keep the server waiting.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.asynccontextmanager
async def _cancelling() -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    spec = msgspec.json.decode(await lines.readline(), type=PageClientSpec)
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(spec.address, cookie_jar=jar) as client:
        clients = PageClients(client, spec)
        await clients.login()
        while True:
            sys.stdout.write(msgspec.json.encode(clients.counts).decode() + "\n")
            sys.stdout.flush()
            match (await lines.readline()).decode().strip():
                case "open":
                    await clients.open()
                case "close":
                    await clients.close()
                case _:
                    await clients.close()
                    return


if __name__ == "__main__":
    asyncio.run(_serve())
