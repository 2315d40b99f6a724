"""The state of the run for all open pages: read once, told to each as fast as it reads.

A page that reads slowly misses states, never the latest one: there is one value, not a queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from qts import telemetry
from qts.cache import CacheStore
from qts.dashboard.live_status import EVERY_S, LiveStatus, read_text
from qts.database import Database
from qts.domain import Clock, OperationError
from qts.risk import FailSafe, KillSwitch

log = telemetry.logger("dashboard")

LOOK_S = 1.0
STILL_S = 1.0  # told at least so often, so that a page knows that we are there
POINTS = 600  # of the charts, one a second


class _Span(msgspec.Struct):
    p99: float


class _Lane(msgspec.Struct):
    depth: int
    total: _Span


class _Events(msgspec.Struct):
    lanes: dict[str, _Lane]


class _Money(msgspec.Struct):
    equity: str
    realised_today: str
    unrealised: str


class _Glance(msgspec.Struct):
    """The part of Live that the charts remember."""

    at: float
    pid: int
    events: _Events
    rates: dict[str, float]
    money: _Money


_GLANCE = msgspec.json.Decoder(_Glance)


class Hub:
    """`run` it until cancelled."""

    def __init__(self, store: CacheStore, prefix: str, database: Database, clock: Clock) -> None:
        self._store = store
        self._prefix = prefix
        self._database = database
        self._clock = clock
        self._live: bytes | None = None
        self._safety: Any = None
        self._switches: Any = None
        self._troubles: dict[str, str] = {}
        self._points: deque[list[float]] = deque(maxlen=POINTS)
        self._news = asyncio.Event()
        self._look_again = asyncio.Event()
        self.version = 0
        self.text = b"{}"
        self._compose()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_live())
            tasks.create_task(self._follow_safety())
            tasks.create_task(self._listen())

    async def changed(self, seen: int) -> None:
        """Until there is something newer than what was seen, or a second has passed."""
        if self.version == seen:
            with suppress(TimeoutError):
                # Not wait_for: before 3.12 it loses a cancellation that comes with the news.
                async with asyncio.timeout(STILL_S):
                    await self._news.wait()

    def history(self) -> bytes:
        return msgspec.json.encode({"history": list(self._points)})

    async def live(self) -> LiveStatus | None:
        """What was told last, whole."""
        return None if self._live is None else msgspec.json.decode(self._live, type=LiveStatus)

    def look(self) -> None:
        """Somebody changed something: do not wait for the next look."""
        self._look_again.set()

    # --- following ------------------------------------------------------------------------------

    async def _follow_live(self) -> None:
        while True:
            try:
                text = await read_text(self._store, self._prefix)
                self._troubles.pop("cache", None)
            except OperationError as error:
                text = None
                self._troubles["cache"] = str(error)
            live = None if text is None else text.encode()
            if live != self._live or self._troubles:
                self._live = live
                self._remember(live)
                self._compose()
            await self._clock.sleep(EVERY_S)

    async def _follow_safety(self) -> None:
        while True:
            self._look_again.clear()
            try:
                safety = await FailSafe(self._database).now()
                switches = await KillSwitch(self._database).all()
                self._troubles.pop("database", None)
            except OperationError as error:
                safety, switches = None, None
                self._troubles["database"] = str(error)
            if (safety, switches) != (self._safety, self._switches) or self._troubles:
                self._safety, self._switches = safety, switches
                self._compose()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look_again.wait()

    async def _listen(self) -> None:
        async with self._database.listen("qts_safety") as listener:
            async for _ in listener:
                self._look_again.set()

    def _compose(self) -> None:
        live = msgspec.Raw(self._live) if self._live is not None else None
        self.text = msgspec.json.encode(
            {
                "live": live,
                "safety": self._safety,
                "switches": self._switches,
                "troubles": self._troubles,
            }
        )
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    def _remember(self, live: bytes | None) -> None:
        if live is None:
            return
        seen = _GLANCE.decode(live)
        if self._points and seen.at - self._points[-1][0] < 1.0:
            return
        lanes = seen.events.lanes.values()
        money = seen.money
        self._points.append(
            [
                seen.at,
                float(money.equity),
                float(money.realised_today) + float(money.unrealised),
                *(lane.total.p99 for lane in lanes),
                *seen.rates.values(),
            ]
        )
