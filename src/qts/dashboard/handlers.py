"""Reading and acting, as the pages and the API do it: decoded, cached, performed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from qts.dashboard.action_service import ActionResult
from qts.dashboard.actions import Action
from qts.dashboard.decoding import decode_params
from qts.dashboard.pages import TradesParams
from qts.dashboard.queries import DashboardQueries
from qts.dashboard.query_cache import QueryCache
from qts.dashboard.session import Operator
from qts.dashboard.views import RunViews
from qts.domain import Clock


class DashboardHandlers:
    """What requests of pages and programs do."""

    def __init__(self, views: RunViews, clock: Clock) -> None:
        self._views = views
        self._cache = QueryCache(clock)

    async def read(
        self,
        query: Callable[[DashboardQueries, Any], Awaitable[Any]],
        kind: type[Any],
        given: Mapping[str, str],
    ) -> bytes:
        """Return the document of a query as JSON; concurrent requests share one result."""
        params = decode_params(given, kind)
        view = await self._views.get(getattr(params, "account", ""))

        async def run() -> bytes:
            return msgspec.json.encode(await query(view.queries, params))

        return await self._cache.get(f"{query.__name__} {params!r}", run)

    async def trades_csv(self, given: Mapping[str, str]) -> str:
        """Return the round trips as CSV."""
        params = decode_params(given, TradesParams)
        return await (await self._views.get(params.account)).queries.trades_csv(params)

    async def act(self, action: Action, operator: Operator, account: str = "") -> ActionResult:
        """Perform an action on a run, its own without an account; what is read next includes it."""
        view = await self._views.get(account)
        try:
            return await view.actions.perform(action, operator)
        finally:
            view.hub.refresh()
            self._cache.clear()
