"""Parameters of a strategy held against what the strategy says of them, before they are set."""

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


def checked(params: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The same, or refused with the name, the value and what is allowed."""
    for name, value in params.items():
        if name not in fields:
            raise RefusedError(f"there is no parameter {name!r}; there are {', '.join(fields)}")
        _check(name, value, fields[name])
    return dict(params)


def _check(name: str, value: Any, field: Mapping[str, Any]) -> None:
    kind = field.get("type")
    allowed = _TYPES.get(kind) if isinstance(kind, str) else None
    if allowed is not None:
        is_wrong_bool = isinstance(value, bool) and kind != "boolean"
        if is_wrong_bool or not isinstance(value, allowed):
            raise RefusedError(f"{name} must be a {kind}, not {value!r}")
    for bound, (holds, words) in _BOUNDS.items():
        if bound in field and not holds(value, field[bound]):
            raise RefusedError(f"{name} must be {words} {field[bound]}, not {value!r}")
    if "enum" in field and value not in field["enum"]:
        raise RefusedError(f"{name} must be one of {field['enum']}, not {value!r}")
