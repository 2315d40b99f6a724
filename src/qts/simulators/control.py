"""Control API under /_control/, local only: statistics, clock, injected events and faults."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from qts.simulators.market.rules import moment_of

Kind = Literal[
    "limit",  # rate-limited below the limit
    "error",  # not executed, HTTP 500
    "drop_request",  # not executed, the connection closes
    "drop_reply",  # executed, the connection closes
    "unknown",  # executed, the reply says unknown outcome (KIS EGW00301; Upbit 500)
    "slow",  # executed, the reply is late
    "cut",  # executed, the reply is cut in half
    "duplicate_fills",  # fill messages are sent twice
    "reorder_fills",  # fill messages are sent in the wrong order
    "lose_fills",  # fill messages are not sent
    "width",  # records of a stream have additional fields
]
BEFORE: frozenset[Kind] = frozenset({"limit", "error", "drop_request"})
AFTER: frozenset[Kind] = frozenset({"drop_reply", "unknown", "slow", "cut"})


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One fault; `path` is a prefix of a request's path or, for streams, a tr_id."""

    kind: Kind
    path: str = ""
    method: str = ""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How often it applies; unset: until it is cleared."""
    chance: Annotated[float, Meta(gt=0, le=1)] = 1.0
    code: str = ""
    """Error code of the venue, such as EGW00215."""
    seconds: Annotated[float, Meta(ge=0)] = 1.0
    fields: Annotated[int, Meta(ge=-10, le=10)] = 1
    struck: int = 0

    def matches(self, path: str, method: str) -> bool:
        return path.startswith(self.path) and self.method in ("", method)


class FaultInjector:
    def __init__(self, seed: int) -> None:
        self._faults: list[Fault] = []
        self._random = random.Random(seed)  # noqa: S311 - reproducible on purpose

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def listed(self) -> list[Fault]:
        return list(self._faults)

    def take(self, kinds: frozenset[Kind], path: str, method: str = "") -> Fault | None:
        """Return the first fault of these kinds that applies now, and count it."""
        for fault in self._faults:
            if fault.kind not in kinds or not fault.matches(path, method):
                continue
            if fault.count is not None and fault.struck >= fault.count:
                continue
            if fault.chance < 1 and self._random.random() >= fault.chance:
                continue
            fault.struck += 1
            return fault
        return None

    def at_random(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


if TYPE_CHECKING:
    from qts.simulators.server import Simulator

Handler = Callable[[web.Request], Awaitable[web.Response]]


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    speed: Annotated[float, Meta(ge=1, le=1000)] | None = None
    paused: bool | None = None
    advance_s: Annotated[float, Meta(ge=0, le=7 * 86_400)] = 0.0
    skew_s: Annotated[float, Meta(ge=-86_400, le=86_400)] | None = None


class InjectedEvent(msgspec.Struct, forbid_unknown_fields=True):
    what: Literal["surge", "halt", "suspend", "resume", "spread", "index"]
    symbol: str
    percent: Annotated[float, Meta(gt=-99, le=1000)] = 3.5
    over_s: Annotated[int, Meta(ge=1, le=3600)] = 2
    seconds: Annotated[int, Meta(ge=1, le=86_400)] = 120
    ticks: Annotated[int, Meta(ge=0, le=100)] = 10
    """Empty levels on each side of the book of a spread; 0 ends it."""


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
