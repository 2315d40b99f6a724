"""Base of both simulators: clocks, request windows, HTTP server, control API, faults."""

from __future__ import annotations

import asyncio
import contextlib
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Self

import msgspec
from aiohttp import web

from qts.domain import Clock, RefusedError, SystemClock
from qts.simulators.config import RequestLimits, Shape
from qts.simulators.control import AFTER, BEFORE, ControlApi, Fault, FaultInjector

_NS = 10**9


class SimulatedClock:
    """Clock for a client that runs at the speed of a simulator."""

    def __init__(self, clock: Clock, start: datetime, speed: float) -> None:
        self._clock = clock
        self._speed = speed
        self._milli = round(speed * 1000)
        self._start = start.astimezone(UTC)
        self._began_ns = self.monotonic_ns()

    def now(self) -> datetime:
        return self._start + timedelta(microseconds=(self.monotonic_ns() - self._began_ns) // 1000)

    def monotonic_ns(self) -> int:
        """Return a multiple of the machine's time, so that it continues across processes."""
        return self._clock.monotonic_ns() * self._milli // 1000

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds / self._speed)


class MarketClock:
    """Clock that can be paused and advanced, in seconds of Korean time as in `market.sessions`."""

    def __init__(self, clock: Clock, start: int, speed: float = 1.0) -> None:
        self._clock = clock
        self._speed = speed
        self._paused = False
        self._anchor_ns = clock.monotonic_ns()
        self._reached_ns = start * _NS

    @property
    def speed(self) -> float:
        return self._speed

    @property
    def paused(self) -> bool:
        return self._paused

    def now_ns(self) -> int:
        passed = 0 if self._paused else self._clock.monotonic_ns() - self._anchor_ns
        return self._reached_ns + int(passed * self._speed)

    def now(self) -> int:
        return self.now_ns() // _NS

    def until_next_s(self) -> float:
        """Return the real seconds until the next second of the market."""
        if self._paused:
            return 0.2  # poll for the end of the pause
        return (_NS - self.now_ns() % _NS) / _NS / self._speed

    def set(self, speed: float | None = None, paused: bool | None = None) -> None:
        self._settle()
        self._speed = self._speed if speed is None else speed
        self._paused = self._paused if paused is None else paused

    def advance(self, seconds: float) -> None:
        """Move at once by `seconds` of the market."""
        self._settle()
        self._reached_ns += round(seconds * _NS)

    def _settle(self) -> None:
        self._reached_ns = self.now_ns()
        self._anchor_ns = self._clock.monotonic_ns()


class Window:
    """Window of one span; admits by granted requests, and keeps the worst count of arrivals."""

    def __init__(self, span_s: float, limit: int, shape: Shape = "sliding") -> None:
        self.limit = limit
        self._span_ns = round(span_s * _NS)
        self._shape = shape
        self._granted: deque[int] = deque()
        self._arrived: deque[int] = deque()
        self.worst = 0

    def arrive(self, now_ns: int) -> None:
        """Count an arrival, granted or not, over the sliding span, which is stricter."""
        self._drop(self._arrived, now_ns - self._span_ns)
        self._arrived.append(now_ns)
        self.worst = max(self.worst, len(self._arrived))

    def has_capacity(self, now_ns: int) -> bool:
        start = now_ns - self._span_ns
        if self._shape == "fixed":
            start = now_ns // self._span_ns * self._span_ns - 1
        self._drop(self._granted, start)
        return not self.limit or len(self._granted) < self.limit

    def grant(self, now_ns: int) -> None:
        self._granted.append(now_ns)

    def left(self, now_ns: int) -> int:
        self.has_capacity(now_ns)
        return self.limit - len(self._granted)

    @staticmethod
    def _drop(log: deque[int], until_ns: int) -> None:
        while log and log[0] <= until_ns:
            log.popleft()


class Meter:
    """Windows of one key."""

    def __init__(
        self, limits: RequestLimits, shape: Shape = "sliding", second_s: float = 1.0
    ) -> None:
        """`second_s` is the span of the first window, two or ten seconds for a few limits."""
        self.windows = {
            "second": Window(second_s, limits.second, shape),
            "minute": Window(60, limits.minute),
            "day": Window(86_400, limits.day),
        }
        self.requests = 0
        self.refused = 0

    def admit(self, now_ns: int) -> bool:
        """Return whether a request is within every limit; rejected ones do not count as used."""
        self.requests += 1
        for window in self.windows.values():
            window.arrive(now_ns)
        fits = all(window.has_capacity(now_ns) for window in self.windows.values())
        if fits:
            for window in self.windows.values():
                window.grant(now_ns)
        else:
            self.refused += 1
        return fits

    def stats(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "refused": self.refused,
            "worst": {name: window.worst for name, window in self.windows.items()},
            "limits": {name: window.limit for name, window in self.windows.items()},
        }


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
