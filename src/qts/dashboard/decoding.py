"""Decoding of what a request gives: one clear sentence for a field that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from qts.domain import RefusedError

T = TypeVar("T")
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "minProperties": "at least {}",
    "maxProperties": "at most {}",
}


def decode_params(query: Mapping[str, str], kind: type[T]) -> T:
    """Return the parameters of a query string; raise RefusedError naming the one that is wrong."""
    names = [name for name, _ in query.items()]  # a MultiDict repeats names only here
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise RefusedError(f"{repeated} is given more than once")
    for name, value in query.items():
        if "\0" in value:
            raise RefusedError(f"{name} contains a zero byte")
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise RefusedError(explain(error, kind)) from None


def decode_body(body: bytes, kind: Any) -> Any:
    """Return the value of a JSON body; raise RefusedError naming the field that is wrong."""
    if b"\\u0000" in body:
        raise RefusedError("the body contains a zero byte (\\u0000)")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RefusedError(explain(error, kind)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RefusedError(f"the body is not JSON: {error}") from None


def explain(error: msgspec.ValidationError, kind: Any) -> str:
    """Return the sentence of an error: the field, what is wrong and what is allowed."""
    text = str(error).replace("`", "")
    fields = _fields(kind)
    if (unknown := re.match(r"Object contains unknown field (.*)", text)) and " - at" not in text:
        return f"unknown field {unknown[1]}; expected one of {', '.join(fields) or 'none'}"
    if missing := re.match(r"Object missing required field (\w+)$", text):
        name = missing[1]
        return f"{name} is missing; expected {_allowed(fields.get(name, {}))}"
    problem, _, path = text.partition(" - at ")
    if name := re.match(r"\$\.(\w+)", path):
        allowed = _allowed(fields.get(name[1], {}))
        return f"{path.removeprefix('$.')}: {problem[:1].lower()}{problem[1:]}; allowed: {allowed}"
    return text[:1].lower() + text[1:]


@cache
def _fields(kind: Any) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each field, with references resolved."""
    try:
        (found,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    except TypeError:
        return {}
    fields = parts.get(found.get("$ref", ""), {}).get("properties", {})
    return {name: _resolved(field, parts) for name, field in fields.items()}


def _resolved(field: dict[str, Any], parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    found = {**parts.get(field.get("$ref", ""), {}), **field}
    if "anyOf" in found:
        found["anyOf"] = [_resolved(each, parts) for each in found["anyOf"]]
    return found


def _allowed(field: Mapping[str, Any]) -> str:
    """Return what a field may be, from its JSON schema."""
    if "enum" in field:
        return "one of " + ", ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " or ".join(_allowed(each) for each in field["anyOf"])
    words = [field.get("format", "") or field.get("type", "any value")]
    words += [text.format(field[name]) for name, text in _BOUNDS.items() if name in field]
    return ", ".join(words)
