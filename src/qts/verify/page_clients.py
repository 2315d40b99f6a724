"""Open pages without a browser, in a process of their own: what they ask of a dashboard.

A page listens to the WebSocket and asks for its data once a second, as `page/app.js` does. One
client more opens the WebSocket and never reads.

    stdin    {"address": ..., "token": ..., "pages": 10}, then lines: open, close
    stdout   a line of JSON for each: how many pages there are, how many states they have read
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import sys
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

LOOK_S = 1.0
LOOKS = ("overview", "events", "orders", "outbox", "backtests", "settings", "market?symbol=&bar=5")


class PageClientSpec(msgspec.Struct, frozen=True):
    address: str
    token: str
    pages: int


class PageClientCounts(msgspec.Struct, frozen=True):
    pages: int
    states: int
    answers: int


class PageClients:
    def __init__(self, client: aiohttp.ClientSession, visit: PageClientSpec) -> None:
        self._client = client
        self._visit = visit
        self._open: contextlib.AsyncExitStack | None = None
        self._here = 0
        self._states = 0
        self._answers = 0

    @property
    def said(self) -> PageClientCounts:
        return PageClientCounts(self._here, self._states, self._answers)

    async def login(self) -> None:
        headers = {"Origin": self._visit.address}
        async with self._client.post(
            "/login", json={"token": self._visit.token}, headers=headers
        ) as reply:
            reply.raise_for_status()

    async def open(self) -> None:
        """All pages are open, and each has read a first state."""
        async with contextlib.AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(_working())
            firsts = []
            for number in range(self._visit.pages):
                first = asyncio.Event()
                firsts.append(first.wait())
                tasks.append(asyncio.create_task(self._listen(first)))
                tasks.append(asyncio.create_task(self._look(LOOKS[number % len(LOOKS)])))
            await asyncio.gather(*firsts)
            await stack.enter_async_context(self._deaf())
            self._open = stack.pop_all()

    async def close(self) -> None:
        if self._open is not None:
            await self._open.aclose()
            self._open = None

    async def _listen(self, first: asyncio.Event) -> None:
        headers = {"Origin": self._visit.address}
        async with self._client.ws_connect("/api/live", headers=headers) as page:
            self._here += 1
            try:
                async for _ in page:
                    self._states += 1
                    first.set()
            finally:
                self._here -= 1

    async def _look(self, what: str) -> None:
        while True:
            async with self._client.get(f"/api/{what}") as reply:
                await reply.read()
                self._answers += reply.status == 200  # else the page says why, and asks again
            await asyncio.sleep(LOOK_S)

    @contextlib.asynccontextmanager
    async def _deaf(self) -> AsyncIterator[None]:
        """Opens the WebSocket and never reads; its window is as small as can be."""
        place = urlsplit(self._visit.address)
        cookies = self._client.cookie_jar.filter_cookies(URL(self._visit.address))
        cookie = "; ".join(f"{name}={each.value}" for name, each in cookies.items())
        request = (
            f"GET /api/live HTTP/1.1\r\nHost: {place.netloc}\r\nOrigin: {self._visit.address}\r\n"
            f"Cookie: {cookie}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            line.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(line, (place.hostname, place.port))
            await loop.sock_sendall(line, request.encode())
            yield
            # Cut, not closed: what it never read must not keep the other side waiting.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.asynccontextmanager
async def _working() -> AsyncIterator[list[asyncio.Task[None]]]:
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
    visit = msgspec.json.decode(await lines.readline(), type=PageClientSpec)
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(visit.address, cookie_jar=jar) as client:
        visitors = PageClients(client, visit)
        await visitors.login()
        for _ in itertools.count():
            said = visitors.said
            sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
            sys.stdout.flush()
            match (await lines.readline()).decode().strip():
                case "open":
                    await visitors.open()
                case "close":
                    await visitors.close()
                case _:
                    await visitors.close()
                    return


if __name__ == "__main__":
    asyncio.run(_serve())
