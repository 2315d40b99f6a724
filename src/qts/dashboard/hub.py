"""Status of the run for all open pages: read once, sent to each as fast as it reads.

There is one value and no queue: a slow page misses states, but gets the latest one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from qts import telemetry
from qts.cache import CacheStore
from qts.dashboard.live_status import INTERVAL_S, LiveStatus, read_text
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError
from qts.risk import FailSafe, KillSwitch

log = telemetry.logger("dashboard")

POLL_INTERVAL_S = 1.0
KEEPALIVE_S = 1.0  # a page gets a message at least so often
MAX_POINTS = 600  # of the charts, one per second


class _Span(msgspec.Struct):
    p99: float


class _Lane(msgspec.Struct):
    depth: int
    total: _Span


class _Events(msgspec.Struct):
    lanes: dict[str, _Lane]


class _Account(msgspec.Struct):
    equity: str
    realised_today: str
    unrealised: str


class _ChartFields(msgspec.Struct):
    """Fields of LiveStatus that the charts use."""

    at: float
    pid: int
    events: _Events
    rates: dict[str, float]
    money: _Account


_CHART_FIELDS = msgspec.json.Decoder(_ChartFields)


class Hub:
    """Reader of the status; `run` it until cancelled."""

    def __init__(
        self, store: CacheStore, prefix: str, database: Database, account: AccountKey, clock: Clock
    ) -> None:
        self._fail_safe = FailSafe(database, account)
        self._kill_switch = KillSwitch(database, account)
        self._store = store
        self._prefix = prefix
        self._database = database
        self._clock = clock
        self._live: bytes | None = None
        self._safety: Any = None
        self._switches: Any = None
        self._problems: dict[str, str] = {}
        self._points: deque[list[float]] = deque(maxlen=MAX_POINTS)
        self._updated = asyncio.Event()
        self._refresh = asyncio.Event()
        self.version = 0
        self.text = b"{}"
        self._compose()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_live())
            tasks.create_task(self._follow_safety())
            tasks.create_task(self._listen())

    async def wait_newer(self, version: int) -> None:
        """Wait for a newer version, at most a second."""
        if self.version == version:
            with suppress(TimeoutError):
                # Not wait_for: before 3.12 it loses a cancellation that comes with an update.
                async with asyncio.timeout(KEEPALIVE_S):
                    await self._updated.wait()

    def history(self) -> bytes:
        return msgspec.json.encode({"history": list(self._points)})

    async def live(self) -> LiveStatus | None:
        """Return the last status, or None if nothing runs."""
        return None if self._live is None else msgspec.json.decode(self._live, type=LiveStatus)

    def refresh(self) -> None:
        """Read the safety state now, after an action changed it."""
        self._refresh.set()

    async def _follow_live(self) -> None:
        while True:
            try:
                text = await read_text(self._store, self._prefix)
                self._problems.pop("cache", None)
            except OperationError as error:
                text = None
                self._problems["cache"] = str(error)
            live = None if text is None else text.encode()
            if live != self._live or self._problems:
                self._live = live
                self._add_point(live)
                self._compose()
            await self._clock.sleep(INTERVAL_S)

    async def _follow_safety(self) -> None:
        while True:
            self._refresh.clear()
            try:
                safety = await self._fail_safe.now()
                switches = await self._kill_switch.all()
                self._problems.pop("database", None)
            except OperationError as error:
                safety, switches = None, None
                self._problems["database"] = str(error)
            if (safety, switches) != (self._safety, self._switches) or self._problems:
                self._safety, self._switches = safety, switches
                self._compose()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._refresh.wait()

    async def _listen(self) -> None:
        async with self._database.listen("qts_safety") as listener:
            async for _ in listener:
                self._refresh.set()

    def _compose(self) -> None:
        live = msgspec.Raw(self._live) if self._live is not None else None
        self.text = msgspec.json.encode(
            {
                "live": live,
                "safety": self._safety,
                "switches": self._switches,
                "troubles": self._problems,
            }
        )
        self.version += 1
        self._updated.set()
        self._updated = asyncio.Event()

    def _add_point(self, live: bytes | None) -> None:
        if live is None:
            return
        fields = _CHART_FIELDS.decode(live)
        if self._points and fields.at - self._points[-1][0] < 1.0:
            return
        lanes = fields.events.lanes.values()
        account = fields.money
        self._points.append(
            [
                fields.at,
                float(account.equity),
                float(account.realised_today) + float(account.unrealised),
                *(lane.total.p99 for lane in lanes),
                *fields.rates.values(),
            ]
        )
