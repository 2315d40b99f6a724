"""What both simulators share: a server, a clock, a market that is kept up to it, a control door.

JSON as both venues send it.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import msgspec
from aiohttp import web

from qts.domain import Clock, RefusedError, SystemClock
from qts.simulators.clock import MarketClock
from qts.simulators.control import ControlApi
from qts.simulators.faults import AFTER, BEFORE, Fault, FaultInjector

_PUMP_S = 0.02  # at high speed many seconds are moved at once


class Simulator(ABC):
    """An async context manager: listens while it is entered.

    A kind of simulator adds its routes, moves its market in `catch_up` and answers its stats.
    """

    name = ""

    def __init__(self, address: tuple[str, int], clock: Clock | None, seed: int) -> None:
        self.clock: Clock = clock or SystemClock()
        self.faults = FaultInjector(seed)
        self._address = address
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # What a kind of simulator says

    market_clock: MarketClock

    @abstractmethod
    def add_routes(self, router: web.UrlDispatcher) -> None: ...

    @abstractmethod
    def catch_up(self) -> None:
        """Move the market and everything behind it on to the clock's second."""

    @abstractmethod
    def stats(self) -> dict[str, Any]: ...

    @abstractmethod
    def symbols(self) -> Sequence[str]:
        """All that are listed."""

    @abstractmethod
    def plant(self, what: str, symbol: str, values: dict[str, Any]) -> None:
        """Something happens to a symbol: a surge, a halt, a suspension."""

    @abstractmethod
    def drop_streams(self) -> int:
        """Cut every WebSocket; answers how many there were."""

    @abstractmethod
    def refusal(self) -> web.Response:
        """What a client gets that is over its limit."""

    @abstractmethod
    def error(self, code: str) -> web.Response:
        """What a client gets when the venue fails; the code is the venue's, or none."""

    @abstractmethod
    def unknown(self) -> web.Response:
        """What a client gets when the venue does not know the outcome itself."""

    def background(self) -> list[Any]:
        """More coroutines that run while the server does."""
        return []

    # What both do

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def url(self) -> str:
        return f"http://{self._address[0]}:{self.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://{self._address[0]}:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._middleware])
        ControlApi(self).add_routes(app.router)
        self.add_routes(app.router)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._address).start()
        except OSError as error:
            await self._runner.cleanup()
            host, port = self._address
            raise RefusedError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
            ) from None
        self._address = (self._address[0], self._runner.addresses[0][1])
        self._tasks = [asyncio.create_task(work) for work in (self._pump(), *self.background())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        self.drop_streams()
        if self._runner:
            await self._runner.cleanup()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task  # a market that broke down is told here

    async def serve(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*self._tasks)

    async def _pump(self) -> None:
        while True:
            self.catch_up()
            due_s = self.market_clock.until_next_s()
            await self.clock.sleep(min(max(due_s, _PUMP_S), 1.0))

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = request.path
        if path.startswith("/_control/") or "upgrade" in request.headers:
            return await self._answered(request, handler)
        self.catch_up()
        before = self.faults.take(BEFORE, path, request.method)
        if before is not None:
            if before.kind == "limit":
                return self.refusal()
            if before.kind == "error":
                return self.error(before.code)
            return _hang_up(request)
        reply = await self._answered(request, handler)
        after = self.faults.take(AFTER, path, request.method)
        return await self._spoil(request, reply, after) if after else reply

    async def _spoil(
        self, request: web.Request, reply: web.StreamResponse, fault: Fault
    ) -> web.StreamResponse:
        if fault.kind == "unknown":
            return self.unknown()
        if fault.kind == "slow":
            await self.clock.sleep(fault.seconds)
            return reply
        if fault.kind == "cut" and isinstance(reply, web.Response) and request.transport:
            body = reply.body if isinstance(reply.body, bytes) else b""
            head = f"HTTP/1.1 {reply.status} OK\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            request.transport.write(head.encode() + body[: len(body) // 2])
        return _hang_up(request)

    @staticmethod
    async def _answered(request: web.Request, handler: Any) -> web.StreamResponse:
        reply: web.StreamResponse = await handler(request)
        return reply


def _hang_up(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.close()
    return web.Response(status=500)  # goes nowhere: the connection is closed


def reply(values: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(values),
        status=status,
        headers=headers,
        content_type="application/json",
        charset="utf-8",
    )
