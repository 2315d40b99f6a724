"""The endpoints of the API: which query and which action stands at which path."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints
from uuid import UUID, uuid5

import msgspec

from qts.dashboard import actions
from qts.dashboard.actions import Action
from qts.dashboard.decoding import decode_body
from qts.dashboard.queries import DashboardQueries
from qts.domain import RefusedError

Query = Callable[[DashboardQueries, Any], Awaitable[Any]]

QUERIES: dict[str, Query] = {
    "/status": DashboardQueries.status,
    "/runs": DashboardQueries.runs,
    "/positions": DashboardQueries.positions,
    "/orders": DashboardQueries.orders,
    "/orders/{id}": DashboardQueries.order,
    "/fills": DashboardQueries.fills,
    "/trades": DashboardQueries.trades,
    "/strategies": DashboardQueries.strategies,
    "/equity": DashboardQueries.equity,
    "/alerts": DashboardQueries.alerts,
    "/risk": DashboardQueries.risk,
    "/outbox": DashboardQueries.outbox,
    "/dead-letters": DashboardQueries.dead_letters,
    "/actions": DashboardQueries.actions,
    "/logs": DashboardQueries.logs,
    "/names": DashboardQueries.names,
    "/market": DashboardQueries.market,
    "/backtests": DashboardQueries.backtests,
    "/backtests/{id}": DashboardQueries.backtest,
    "/router": DashboardQueries.router,
    "/settings": DashboardQueries.settings,
}


class ActionEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An action, with fields that programs must give, or cannot."""

    kind: type[Action]
    required: frozenset[str] = frozenset({"reason"})
    hidden: frozenset[str] = frozenset({"action", "id"})
    summary: str = ""

    @property
    def fields(self) -> list[str]:
        return [each for each in self.kind.__struct_fields__ if each not in self.hidden]

    @property
    def description(self) -> str:
        return self.summary or (self.kind.__doc__ or "").split("\n\n")[0]

    def decode(self, body: bytes, request_id: UUID) -> Action:
        """Return the action of a body; `request_id` is the id of its order."""
        given: dict[str, msgspec.Raw] = decode_body(body, dict[str, msgspec.Raw])
        for name in given:
            if name not in self.fields:
                raise RefusedError(
                    f"unknown field {name[:50]}; expected one of {', '.join(self.fields)}"
                )
        if "id" in self.kind.__struct_fields__:
            given["id"] = msgspec.Raw(msgspec.json.encode(request_id))
        action: Action = decode_body(msgspec.json.encode(given), self.kind)
        for name in sorted(self.required):
            if getattr(action, name) in (None, ""):
                raise RefusedError(f"{name} is missing; expected a text")
        return action


_CLOSE = actions.ClosePositionsAction
ACTIONS: dict[str, ActionEndpoint] = {
    "kill": ActionEndpoint(kind=actions.KillSwitchAction),
    "release": ActionEndpoint(kind=actions.ReleaseAction),
    "cancel": ActionEndpoint(kind=actions.CancelOrderAction),
    "place": ActionEndpoint(
        kind=actions.PlaceOrderAction,
        summary="Place an order at a price, or at the market without one; wait for its outcome.",
    ),
    # Two endpoints, so that a symbol left out by mistake does not close everything.
    "close": ActionEndpoint(
        kind=_CLOSE,
        required=frozenset({"reason", "symbol"}),
        summary="Cancel the open orders of a symbol and sell what is held; wait for the outcome.",
    ),
    "flatten": ActionEndpoint(
        kind=_CLOSE,
        hidden=frozenset({"action", "id", "symbol"}),
        summary="Cancel all open orders and sell all that is held; wait for the outcome.",
    ),
    "acknowledge": ActionEndpoint(kind=actions.AcknowledgeAlertsAction),
    "reconcile": ActionEndpoint(kind=actions.ReconcileAction),
    "requeue": ActionEndpoint(kind=actions.RequeueAction),
    "replay": ActionEndpoint(kind=actions.ReplayAction),
    "params": ActionEndpoint(kind=actions.SetParamsAction),
}


def query_types(query: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the type of a query's parameters and that of its document."""
    hints = get_type_hints(query)
    result = hints.pop("return")
    (params,) = hints.values()
    return params, result


def request_id_of(token_id: str, key: str) -> UUID:
    """Return the id of the order of a request: the same for the same key of a token."""
    return uuid5(UUID(hashlib.sha256(token_id.encode()).hexdigest()[:32]), key)


def request_digest(name: str, action: Action) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + msgspec.json.encode(action)).digest()
