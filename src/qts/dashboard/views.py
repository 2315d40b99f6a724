"""Views of the runs on one database: that of the dashboard's own settings, and of any other.

The view of another run reads its live status where both runs share a cache; where they do not, what
the database has of it. It ends when no page or program has used it for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from msgspec.structs import replace

from qts import telemetry
from qts.dashboard.action_service import ActionService
from qts.dashboard.hub import Hub
from qts.dashboard.queries import DashboardQueries
from qts.dashboard.runs import accounts_of_run, status_prefix
from qts.dashboard.sources import DashboardSources
from qts.domain import Clock

IDLE_S = 30.0
CHECK_INTERVAL_S = 5.0
MAX_VIEWS = 16
READ_TIMEOUT_S = 3.0

log = telemetry.logger("dashboard")


class RunView:
    """One run: its state, its queries and its actions."""

    def __init__(self, sources: DashboardSources, clock: Clock, acts_on: str = "") -> None:
        self._clock = clock
        self.accounts = sources.accounts
        self.hub = Hub(sources.store, sources.cache.prefix, sources.database, self.accounts, clock)
        self.queries = DashboardQueries(sources, self.hub, clock)
        self.actions = ActionService(
            sources.database, self.accounts, sources.streams, self.hub.live, acts_on
        )
        self.used_ns = clock.monotonic_ns()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to read, and wait for the first state."""
        self._running = asyncio.create_task(self.hub.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.hub.wait_read()

    @property
    def has_failed(self) -> bool:
        return self._running is not None and self._running.done()

    @property
    def idle_s(self) -> float:
        return (self._clock.monotonic_ns() - self.used_ns) / 1e9

    async def stop(self) -> None:
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.wait({self._running})
        if not self._running.cancelled() and (error := self._running.exception()) is not None:
            log.error("status reader of another run failed", exc_info=error)


class RunViews:
    """The views in use; `get` opens one for a run that is asked for."""

    def __init__(self, sources: DashboardSources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._others: dict[str, RunView] = {}
        self._opening = asyncio.Lock()
        self.own = RunView(sources, clock)

    async def get(self, account: str) -> RunView:
        """Return the view of an account's run, the own one without an account.

        Raise RefusedError for an account that the database does not know.
        """
        if not account or account in map(str, self._sources.accounts):
            return self.own
        async with self._opening:
            found = self._others.get(account)
            if found is None or found.has_failed:
                found = await self._open(account)
            found.used_ns = self._clock.monotonic_ns()
            return found

    async def _open(self, account: str) -> RunView:
        keys = await accounts_of_run(self._sources.database, account)
        while len(self._others) >= MAX_VIEWS:
            await self._close(min(self._others, key=lambda name: self._others[name].used_ns))
        await self._close(account)
        own, cache = self._sources.account, self._sources.cache
        sources = replace(
            self._sources,
            account=keys[0],
            others=tuple(keys[1:]),
            cache=replace(cache, prefix=status_prefix(cache.prefix, own, keys[0])),
        )
        view = RunView(sources, self._clock, acts_on=", ".join(map(str, keys)))
        self._others[account] = view
        await view.start()
        return view

    async def _close(self, account: str) -> None:
        if (view := self._others.pop(account, None)) is not None:
            await view.stop()

    @contextlib.asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Close views that nobody uses, and all of them at the end."""
        task = asyncio.create_task(self._close_idle())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            for account in list(self._others):
                await self._close(account)

    async def _close_idle(self) -> None:
        while True:
            await self._clock.sleep(CHECK_INTERVAL_S)
            for account, view in list(self._others.items()):
                if view.idle_s > IDLE_S or view.has_failed:
                    await self._close(account)
