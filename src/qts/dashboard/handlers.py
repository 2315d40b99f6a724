"""Reading and acting, as the pages and the API do it: decoded, cached, performed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from qts.dashboard.action_service import ActionResult, ActionService
from qts.dashboard.actions import Action
from qts.dashboard.decoding import decode_params
from qts.dashboard.hub import Hub
from qts.dashboard.pages import TradesParams
from qts.dashboard.queries import DashboardQueries
from qts.dashboard.query_cache import QueryCache
from qts.dashboard.session import Operator
from qts.dashboard.sources import DashboardSources
from qts.domain import Clock


class DashboardHandlers:
    """What requests of pages and programs do."""

    def __init__(self, sources: DashboardSources, hub: Hub, clock: Clock) -> None:
        self._hub = hub
        self._cache = QueryCache(clock)
        self._actions = ActionService(sources.database, sources.accounts, sources.streams, hub.live)
        self._queries = DashboardQueries(sources, hub, clock)

    async def read(
        self,
        query: Callable[[DashboardQueries, Any], Awaitable[Any]],
        kind: type[Any],
        given: Mapping[str, str],
    ) -> bytes:
        """Return the document of a query as JSON; concurrent requests share one result."""
        params = decode_params(given, kind)

        async def run() -> bytes:
            return msgspec.json.encode(await query(self._queries, params))

        return await self._cache.get(f"{query.__name__} {params!r}", run)

    async def trades_csv(self, given: Mapping[str, str]) -> str:
        """Return the round trips as CSV."""
        return await self._queries.trades_csv(decode_params(given, TradesParams))

    async def act(self, action: Action, operator: Operator) -> ActionResult:
        """Perform an action; what is read afterwards includes it."""
        try:
            return await self._actions.perform(action, operator)
        finally:
            self._hub.refresh()
            self._cache.clear()
