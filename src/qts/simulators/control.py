"""Control API under /_control/, local only: statistics, clock, injected events and faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from qts.simulators.faults import Fault
from qts.simulators.market.sessions import moment_of

if TYPE_CHECKING:
    from qts.simulators.server import Simulator

Handler = Callable[[web.Request], Awaitable[web.Response]]


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    speed: Annotated[float, Meta(ge=1, le=1000)] | None = None
    paused: bool | None = None
    advance_s: Annotated[float, Meta(ge=0, le=7 * 86_400)] = 0.0
    skew_s: Annotated[float, Meta(ge=-86_400, le=86_400)] | None = None


class InjectedEvent(msgspec.Struct, forbid_unknown_fields=True):
    what: Literal["surge", "halt", "suspend", "resume"]
    symbol: str
    percent: Annotated[float, Meta(gt=-99, le=1000)] = 3.5
    over_s: Annotated[int, Meta(ge=1, le=3600)] = 2
    seconds: Annotated[int, Meta(ge=1, le=86_400)] = 120


class ControlApi:
    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for method, path, handler in (
            ("GET", "stats", self.stats),
            ("GET", "symbols", self.symbols),
            ("GET", "clock", self.clock),
            ("POST", "clock", self.change_clock),
            ("POST", "market", self.inject_event),
            ("GET", "faults", self.list_faults),
            ("POST", "faults", self.add_fault),
            ("DELETE", "faults", self.clear_faults),
            ("DELETE", "streams", self.drop_streams),
        ):
            router.add_route(method, f"/_control/{path}", _local(handler))

    async def stats(self, _request: web.Request) -> web.Response:
        return _json(self._simulator.stats())

    async def symbols(self, _request: web.Request) -> web.Response:
        """Return a symbol per line, the format of `feed.symbols`."""
        return web.Response(text="".join(f"{symbol}\n" for symbol in self._simulator.symbols()))

    async def clock(self, _request: web.Request) -> web.Response:
        clock = self._simulator.market_clock
        return _json(
            {
                "now": moment_of(clock.now()).isoformat(),
                "speed": clock.speed,
                "paused": clock.paused,
                "skew_s": self._simulator.skew_s,
            }
        )

    async def change_clock(self, request: web.Request) -> web.Response:
        change = msgspec.json.decode(await request.read(), type=ClockChange)
        self._simulator.market_clock.set(change.speed, change.paused)
        self._simulator.market_clock.advance(change.advance_s)
        if change.skew_s is not None:
            self._simulator.set_skew(change.skew_s)
        self._simulator.catch_up()
        return await self.clock(request)

    async def inject_event(self, request: web.Request) -> web.Response:
        event = msgspec.json.decode(await request.read(), type=InjectedEvent)
        values: dict[str, Any] = msgspec.structs.asdict(event)
        try:
            self._simulator.inject(values.pop("what"), values.pop("symbol"), values)
        except KeyError:
            return _json({"error": f"no symbol {event.symbol}"}, 404)
        return _json({"planted": event.what})

    async def list_faults(self, _request: web.Request) -> web.Response:
        return _json(self._simulator.faults.listed())

    async def add_fault(self, request: web.Request) -> web.Response:
        self._simulator.faults.add(msgspec.json.decode(await request.read(), type=Fault))
        return await self.list_faults(request)

    async def clear_faults(self, request: web.Request) -> web.Response:
        self._simulator.faults.clear()
        return await self.list_faults(request)

    async def drop_streams(self, _request: web.Request) -> web.Response:
        return _json({"dropped": self._simulator.drop_streams()})


def _local(handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.Response:
        # A browser page on this machine sends an Origin, a control client does not.
        if not is_loopback(request.remote) or "Origin" in request.headers:
            raise web.HTTPNotFound
        try:
            return await handler(request)
        except msgspec.ValidationError as error:
            return _json({"error": str(error)}, 400)
        except msgspec.DecodeError:
            return _json({"error": "the body is not JSON"}, 400)

    return guarded


def is_loopback(remote: str | None) -> bool:
    try:
        return ip_address(remote or "").is_loopback
    except ValueError:
        return False


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )
