"""Base of both simulators: HTTP server, market clock, control API and faults."""

from __future__ import annotations

import asyncio
import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from email.utils import format_datetime
from typing import Any, Self

import msgspec
from aiohttp import web

from qts.domain import Clock, RefusedError, SystemClock
from qts.simulators.clock import MarketClock
from qts.simulators.control import AFTER, BEFORE, ControlApi, Fault, FaultInjector

_SLASHES = re.compile("/+")
_PUMP_INTERVAL_S = 0.02  # at high speed, many seconds of the market per step


class Simulator(ABC):
    """Async context manager that listens while it is entered.

    A subclass adds its routes, advances its market in `catch_up` and returns its statistics.
    """

    name = ""

    def __init__(self, address: tuple[str, int], clock: Clock | None, seed: int) -> None:
        self.clock: Clock = clock or SystemClock()
        self.faults = FaultInjector(seed)
        self.skew_s = 0.0
        self._address = address
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # Implemented by each simulator

    market_clock: MarketClock

    @abstractmethod
    def add_routes(self, router: web.UrlDispatcher) -> None: ...

    @abstractmethod
    def catch_up(self) -> None:
        """Advance the market, its orders and streams to the current second of the clock."""

    @abstractmethod
    def stats(self) -> dict[str, Any]: ...

    @abstractmethod
    def symbols(self) -> Sequence[str]:
        """Return the listed symbols."""

    @abstractmethod
    def inject(self, event: str, symbol: str, values: dict[str, Any]) -> None:
        """Inject a surge, a halt, a suspension or its end; raise KeyError for unknown symbols."""

    @abstractmethod
    def drop_streams(self) -> int:
        """Abort every WebSocket connection and return their number."""

    @abstractmethod
    def rate_limited(self) -> web.Response:
        """Return the reply to a client over its limit."""

    @abstractmethod
    def error(self, code: str) -> web.Response:
        """Return the reply for an error of the venue; `code` may be empty."""

    @abstractmethod
    def unknown(self) -> web.Response:
        """Return the reply for an unknown outcome."""

    @abstractmethod
    def not_found(self) -> web.Response:
        """Return the reply to a path that the venue does not have."""

    def background(self) -> list[Any]:
        """Return further coroutines to run with the server."""
        return []

    # Shared

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
        self._tasks = [asyncio.create_task(each) for each in (self._pump(), *self.background())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        self.drop_streams()
        if self._runner:
            await self._runner.cleanup()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task  # raises the error of a failed market

    def set_skew(self, seconds: float) -> None:
        """Set how far the venue's clock is ahead; the market waits where it went back."""
        self.market_clock.advance(seconds - self.skew_s)
        self.skew_s = seconds

    async def serve(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(*self._tasks)

    async def _pump(self) -> None:
        while True:
            self.catch_up()
            due_s = self.market_clock.until_next_s()
            await self.clock.sleep(min(max(due_s, _PUMP_INTERVAL_S), 1.0))

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if "//" in request.path:  # both venues ignore empty segments
            path = _SLASHES.sub("/", request.path)
            request = request.clone(rel_url=request.rel_url.with_path(path, keep_query=True))
            handler = (await request.app.router.resolve(request)).handler
        path = request.path
        if path.startswith("/_control/") or "upgrade" in request.headers:
            return await self._handle(request, handler)
        self.catch_up()
        before = self.faults.take(BEFORE, path, request.method)
        if before is not None:
            if before.kind == "limit":
                return self._dated(self.rate_limited())
            if before.kind == "error":
                return self._dated(self.error(before.code))
            return _hang_up(request)
        reply = self._dated(await self._handle(request, handler))
        after = self.faults.take(AFTER, path, request.method)
        return await self._apply_fault(request, reply, after) if after else reply

    def _dated(self, reply: web.StreamResponse) -> web.StreamResponse:
        now = self.clock.now() + timedelta(seconds=self.skew_s)
        reply.headers["Date"] = format_datetime(now, usegmt=True)
        return reply

    async def _apply_fault(
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

    async def _handle(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            reply: web.StreamResponse = await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
            return self.not_found()
        return reply


def _hang_up(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.close()
    return web.Response(status=500)  # not sent: the connection is closed


def reply(values: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a JSON response in the form of both venues."""
    return web.Response(
        body=msgspec.json.encode(values),
        status=status,
        headers=headers,
        content_type="application/json",
        charset="utf-8",
    )
