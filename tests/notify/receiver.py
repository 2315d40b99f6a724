"""HTTP server that records messages and answers with given status codes."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

TIMEOUT_S = 60.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition is true."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "condition never became true"
        await asyncio.sleep(0.01)


class Receiver:
    def __init__(self) -> None:
        self.url = ""
        self.accepted: list[dict[str, Any]] = []  # bodies answered with 200
        self.requests: list[tuple[str, Mapping[str, str], bytes]] = []
        self.answers: deque[int] = deque()  # status of the next requests; then 200
        self.headers: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def until(self, accepted: int, within_s: float = TIMEOUT_S) -> None:
        """Wait until `accepted` requests were answered with 200."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.accepted) >= accepted)

    async def until_requested(self, requests: int) -> None:
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= requests)

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        answer = self.answers.popleft() if self.answers else 200
        async with self._changed:
            self.requests.append((request.path, dict(request.headers), body))
            if answer == 200 and request.headers["Content-Type"] == "application/json":
                self.accepted.append(msgspec.json.decode(body))
            self._changed.notify_all()
        return web.Response(status=answer, headers=self.headers)

    @asynccontextmanager
    async def serving(
        self, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
            await site.start()
            address: Any = runner.addresses[0]
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{address[1]}"
            yield self
        finally:
            await runner.cleanup()
