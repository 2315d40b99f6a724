"""Types and values as text for error messages: one line, without passwords."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import inspect

from qts.domain import Secret

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LOGIN = re.compile(r"://\S*@")
_MAX_LENGTH = 60


def allowed(kind: inspect.Type) -> str:
    """Describe the values a type allows, as in `an integer from 1 to 500`."""
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _range(kind)
        case inspect.FloatType():
            return "a finite number" + _range(kind)
        case inspect.LiteralType():
            return " or ".join(json.dumps(value) for value in kind.values)
        case inspect.VarTupleType(item_type=inspect.StructType()):
            return "tables [[...]] of a settings file"
        case inspect.StructType() | inspect.DictType():
            return "a table"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list, each {allowed(kind.item_type)}"
        case inspect.CustomType() if kind.cls is Secret:
            return 'a text or { file = "path" }'
        case inspect.CustomType():
            return "a path"
        case _:
            return "a text"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    bounds = {"at least": kind.ge, "above": kind.gt, "at most": kind.le, "below": kind.lt}
    given = [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
    return f" {' and '.join(given)}" if given else ""


def shown(value: Any) -> str:
    """Return a value as the user wrote it, shortened, with the login of a URL masked."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to print very long ones
        return "a very large integer"
    if not isinstance(value, str):
        return str(value)
    text = _LOGIN.sub("://***@", value)
    if len(text) > _MAX_LENGTH:
        text = text[:_MAX_LENGTH] + "…"
    return json.dumps(text, ensure_ascii=not text.isprintable())


def dotted(path: tuple[str, ...]) -> str:
    """Return a key's full name; parts that are not bare TOML keys are quoted."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else json.dumps(part) for part in path)
