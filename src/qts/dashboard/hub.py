"""What all open pages share: data sources, and the status of the run, read once for all of them.

There is one value and no queue: a slow page misses states, but gets the latest one when it requests
the next. Ages are spans of this machine's monotonic clock; a page adds the time since its request,
so that a slow connection or a wrong clock of the browser cannot make a status look younger than it
is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from qts.cache import CacheConfig, CacheStore
from qts.dashboard.live_status import INTERVAL_S, STALE_S, LiveReading, LiveStatus, read_text
from qts.dashboard.pages import StatusPage
from qts.dashboard.verdict import Observed, RunState, StoredState, judge, read_stored
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError
from qts.outbox import StreamConfig

POLL_INTERVAL_S = 1.0
KEEPALIVE_S = 1.0  # a page gets an answer at least so often
MAX_POINTS = 600  # of the charts, one per second


class DashboardSources(msgspec.Struct, frozen=True, kw_only=True):
    """Data sources of the pages."""

    database: Database
    store: CacheStore
    cache: CacheConfig
    account: AccountKey
    streams: dict[str, StreamConfig]  # of the bus
    home: Path
    record: Path
    settings: list[dict[str, Any]]  # name, value (secrets hidden), default, description
    push_key: str = ""  # public key for browsers; empty: no web push
    others: tuple[AccountKey, ...] = ()  # further accounts, of a run on several venues

    @property
    def accounts(self) -> tuple[AccountKey, ...]:
        return self.account, *self.others

    @property
    def run_log(self) -> Path | None:
        """Return the log file of the run; None: it logs to standard error."""
        found = (each["value"] for each in self.settings if each["name"] == "telemetry.log_file")
        return Path(path) if (path := next(found, None)) else None


class Hub:
    """Reader of the status; `run` it until cancelled."""

    def __init__(
        self,
        store: CacheStore,
        prefix: str,
        database: Database,
        accounts: Sequence[AccountKey],
        clock: Clock,
    ) -> None:
        self._accounts = accounts
        self._store = store
        self._prefix = prefix
        self._database = database
        self._clock = clock
        self._live = LiveReading(clock)
        self._is_published = False  # the status is still there
        self._stored: StoredState | None = None
        self._stored_ns = 0  # when its reading began
        self._problems = dict.fromkeys(("cache", "database"), "not read yet")
        self._points: deque[list[float]] = deque(maxlen=MAX_POINTS)
        self._updated = asyncio.Event()
        self._refresh = asyncio.Event()
        self.version = 0
        self._compose()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_live())
                tasks.create_task(self._follow_safety())
                tasks.create_task(self._listen())
        finally:
            self._notify()  # nothing newer comes

    async def wait_newer(self, version: int) -> None:
        """Wait for a newer version or the end of `run`, at most a second."""
        if self.version == version:
            with suppress(TimeoutError):
                # Not wait_for: before 3.12 it loses a cancellation that comes with an update.
                async with asyncio.timeout(KEEPALIVE_S):
                    await self._updated.wait()

    async def wait_read(self) -> None:
        """Wait until cache and database were read, or could not be."""
        while "not read yet" in self._problems.values():
            await self._updated.wait()

    def answer(self, requested_ns: int, *, with_history: bool) -> bytes:
        """Return the state for a page, with how long it was held back here and its own age."""
        now_ns = self._clock.monotonic_ns()
        message = {
            "waited_s": (now_ns - requested_ns) / 1e9,
            "composed_s": (now_ns - self._composed_ns) / 1e9,
            "state": msgspec.Raw(self._text),
        }
        if with_history:
            message["history"] = list(self._points)
        return msgspec.json.encode(message)

    async def live(self) -> LiveStatus | None:
        """Return the status of the run, or None if none reports."""
        return self._live.status if self._seen.run == "reporting" else None

    def state(self) -> StatusPage:
        """Return the state that the pages show, as a value."""
        return msgspec.json.decode(self._text, type=StatusPage)

    @property
    def run_state(self) -> RunState:
        return self._seen.run

    def refresh(self) -> None:
        """Read the safety state now, after an action changed it."""
        self._refresh.set()

    async def _follow_live(self) -> None:
        while True:
            is_new, problems = False, dict[str, str]()
            try:
                is_new = self._take(await read_text(self._store, self._prefix))
            except OperationError as error:
                problems["cache"] = str(error)
            except (msgspec.DecodeError, UnicodeError) as error:
                problems["status"] = f"its status cannot be read: {error}"
            if "database" in self._problems:
                problems["database"] = self._problems["database"]
            self._problems = problems
            age_ns = self._clock.monotonic_ns() - self._composed_ns
            if is_new or self._is_changed() or age_ns >= KEEPALIVE_S * 1e9:
                self._compose()
            await self._clock.sleep(INTERVAL_S)

    def _take(self, text: str | None) -> bool:
        """Take what was read; return whether it is a new status."""
        self._is_published = False
        is_new = text is not None and self._live.update(text)
        self._is_published = text is not None
        if is_new and self._live.status is not None:
            self._add_point(self._live.status)
        return is_new

    def _is_changed(self) -> bool:
        seen = self._observe()
        return seen.run != self._seen.run or seen.problems != self._seen.problems

    async def _follow_safety(self) -> None:
        while True:
            self._refresh.clear()
            before, began_ns = self._stored, self._clock.monotonic_ns()
            try:
                self._stored = await read_stored(self._database, *self._accounts)
                self._stored_ns = began_ns
                self._problems.pop("database", None)
            except OperationError as error:
                self._stored = None
                self._problems["database"] = str(error)
            if self._stored != before or self._is_changed():
                self._compose()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._refresh.wait()

    async def _listen(self) -> None:
        async with self._database.listen("qts_safety") as listener:
            async for _ in listener:
                self._refresh.set()

    def _observe(self) -> Observed:
        """Return what is known now: a status that is gone counts as old."""
        age_s = self._live.age_s
        if age_s is not None and not self._is_published:
            age_s = max(age_s, STALE_S + 0.001)
        stored = self._stored
        if stored is not None and self._stored_ns < self._live.changed_ns:
            stored = replace(stored, is_locked=None)
        if stored is not None and stored.status is not None:
            read_s = (self._clock.monotonic_ns() - self._stored_ns) / 1e9
            status = replace(stored.status, age_s=stored.status.age_s + read_s)
            stored = replace(stored, status=status)
        return Observed(
            live=self._live.status,
            age_s=age_s,
            stored=stored,
            problems=dict(self._problems),
        )

    def _compose(self) -> None:
        self._seen = seen = self._observe()
        self._text = msgspec.json.encode(
            {
                "live": msgspec.Raw(self._live.text.encode()) if self._live.text else None,
                "live_age_s": seen.age_s,
                "run": seen.run,
                "verdict": judge(seen),
                "safety": seen.stored.safety if seen.stored else None,
                "switches": seen.stored.switches if seen.stored else None,
                "troubles": seen.problems,
                "stored": seen.stored.status if seen.stored else None,
            }
        )
        self._composed_ns = self._clock.monotonic_ns()
        self.version += 1
        self._notify()

    def _notify(self) -> None:
        """Wake whatever waits for a newer version."""
        self._updated.set()
        self._updated = asyncio.Event()

    def _add_point(self, live: LiveStatus) -> None:
        if self._points and live.at - self._points[-1][0] < 1.0:
            return
        lanes, account = live.events.lanes.values(), live.money
        self._points.append(
            [
                live.at,
                float(account.equity),
                float(account.realised_today + account.unrealised),
                *(lane.total.p99 for lane in lanes),
                *live.rates.values(),
            ]
        )
