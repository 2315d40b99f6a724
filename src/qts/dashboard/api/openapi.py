"""The OpenAPI 3.1 document, generated from the queries, the actions and their structs."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec

import qts
from qts.dashboard.action_service import ActionResult
from qts.dashboard.api.endpoints import ACTIONS, QUERIES, ActionEndpoint, query_types
from qts.dashboard.api.problem import CONTENT_TYPE, PREFIX, Problem
from qts.dashboard.api.tokens import ApiToken

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
