"""Endpoints of the API, their errors as problem objects (RFC 9457), and the OpenAPI 3.1 document.

Endpoints say which query and which action stands at which path; the document is generated from the
queries, the actions and their structs.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, get_type_hints
from uuid import UUID, uuid5

import msgspec
from aiohttp import web

import qts
from qts.dashboard import actions
from qts.dashboard.action_service import ActionResult
from qts.dashboard.actions import Action
from qts.dashboard.api.tokens import ApiToken
from qts.dashboard.handlers import decode_body
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


PREFIX = "/api/v1"
CONTENT_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: the name of the status, and one sentence."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class ProblemError(Exception):
    """Error with its own status and headers."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}


def is_api(request: web.BaseRequest) -> bool:
    return request.path == PREFIX or request.path.startswith(f"{PREFIX}/")


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return web.Response(
        body=msgspec.json.encode(problem),
        status=status,
        content_type=CONTENT_TYPE,
        headers=headers,
    )


_REF = "#/components/schemas/{name}"
_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "new for each action; the same key with the same body returns the first outcome",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$", "maxLength": 200, "minLength": 1},
}
_PROBLEM = {
    "description": "What went wrong, in one sentence.",
    "content": {CONTENT_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
}
_STATUSES = {
    "401": "No token, or one that is unknown, expired or revoked.",
    "422": "A field or a parameter is unknown or has a value that is not allowed.",
    "429": "The token has used its requests; Retry-After says when to try again.",
    "503": "The database or the run does not answer.",
}
_ACTION_STATUSES = {
    "400": "A header is missing, or an action has a query string.",
    "403": "The role of the token does not permit the action.",
    "409": "The key belongs to another request, or the run did not carry out the order.",
    "415": "The body is not application/json.",
}


def openapi_document() -> dict[str, Any]:
    """Return the document; it needs no server and no database."""
    kinds = [query_types(query) for query in QUERIES.values()]
    results = [result for _, result in kinds]
    bodies = {each.kind for each in ACTIONS.values()}
    used: list[Any] = [*results, ActionResult, ApiToken, Problem, *(each for each, _ in kinds)]
    _, schemas = msgspec.json.schema_components(
        [*used, *sorted(bodies, key=lambda each: each.__name__)], ref_template=_REF
    )
    paths: dict[str, Any] = {
        f"{PREFIX}/openapi.json": {"get": _operation("openapi", "This document.", None)},
        f"{PREFIX}/me": {"get": _operation("me", "The token of the request.", "ApiToken")},
    }
    for (path, query), (params, result) in zip(QUERIES.items(), kinds, strict=True):
        operation = _operation(query.__name__, inspect.getdoc(query) or "", result.__name__)
        names = set(re.findall(r"\{(\w+)\}", path))
        operation["parameters"] = _parameters(schemas[params.__name__], names)
        if names:
            operation["responses"]["404"] = {**_PROBLEM, "description": "There is none."}
        paths[PREFIX + path] = {"get": operation}
    for name, endpoint in ACTIONS.items():
        paths[f"{PREFIX}/actions/{name}"] = {"post": _action(name, endpoint, schemas)}
    for params, _ in kinds:
        schemas.pop(params.__name__, None)  # they are parameters, not bodies
    for kind in bodies:
        del schemas[kind.__name__]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "QTS",
            "version": qts.__version__,
            "summary": "Read and operate a running QTS.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "created with qts dashboard token create",
                }
            },
            "schemas": schemas,
        },
    }


def _operation(name: str, text: str, result: str | None) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=result)} if result else {"type": "object"}
    done = {"description": "Done.", "content": {"application/json": {"schema": schema}}}
    return {
        "operationId": name,
        "summary": text.split("\n\n")[0].replace("\n", " "),
        "responses": {"200": done, **_problems(_STATUSES), "default": _PROBLEM},
    }


def _problems(texts: dict[str, str]) -> dict[str, Any]:
    return {status: {**_PROBLEM, "description": text} for status, text in texts.items()}


def _parameters(schema: dict[str, Any], in_path: set[str]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "path" if name in in_path else "query",
            "required": name in required,
            "schema": field,
        }
        for name, field in schema["properties"].items()
    ]


def _action(name: str, endpoint: ActionEndpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    whole = schemas[endpoint.kind.__name__]
    fields = {field: whole["properties"][field] for field in endpoint.fields}
    for field in endpoint.required:
        fields[field] = _given(fields[field])
    body = {
        "type": "object",
        "properties": fields,
        "required": [
            field
            for field in fields
            if field in whole.get("required", []) or field in endpoint.required
        ],
        "additionalProperties": False,
    }
    operation = _operation(name, endpoint.description, "ActionResult")
    operation["description"] = f"Needs the role {endpoint.kind.role.label}."
    operation["parameters"] = [_KEY_HEADER]
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    operation["responses"] |= _problems(_ACTION_STATUSES)
    return operation


def _given(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that cannot be null, empty or left out."""
    found: dict[str, Any] = next(
        (each for each in field.get("anyOf", ()) if each.get("type") == "string"), field
    )
    return {key: value for key, value in found.items() if key != "default"} | {"minLength": 1}
