"""Check of strategy parameters against their JSON schema."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from qts.domain import RefusedError

_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "maximum": (operator.le, "at most"),
    "exclusiveMinimum": (operator.gt, "above"),
    "exclusiveMaximum": (operator.lt, "below"),
}
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
}


def validate_params(
    params: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the parameters; raise RefusedError if one does not match its JSON schema."""
    for name, value in params.items():
        if name not in fields:
            raise RefusedError(f"unknown parameter {name!r}; expected one of {', '.join(fields)}")
        _check(name, value, fields[name])
    return dict(params)


def _check(name: str, value: Any, field: Mapping[str, Any]) -> None:
    kind = field.get("type")
    allowed = _TYPES.get(kind) if isinstance(kind, str) else None
    if allowed is not None:
        is_wrong_bool = isinstance(value, bool) and kind != "boolean"
        if is_wrong_bool or not isinstance(value, allowed):
            raise RefusedError(f"{name} is {value!r}; expected {kind}")
    for bound, (holds, text) in _BOUNDS.items():
        if bound in field and not holds(value, field[bound]):
            raise RefusedError(f"{name} is {value!r}; expected {text} {field[bound]}")
    if "enum" in field and value not in field["enum"]:
        raise RefusedError(f"{name} is {value!r}; expected one of {field['enum']}")
