"""Raw JSON values against the form a struct declares; a problem is one line a user can act on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import inspect

_LONGEST = 60


def form_problems(form: type[msgspec.Struct], value: Any) -> Iterator[str]:
    """Unknown, missing and ill-typed keys, numbers out of range: each with what is allowed."""
    yield from _form(inspect.type_info(form), value, "")


def _form(kind: inspect.Type, value: Any, path: str) -> Iterator[str]:
    match kind:
        case inspect.Metadata():
            yield from _form(kind.type, value, path)
        case inspect.UnionType():
            (some,) = (part for part in kind.types if not isinstance(part, inspect.NoneType))
            if value is not None:
                yield from _form(some, value, path)
        case inspect.StructType():
            yield from _struct(kind, value, path)
        case inspect.DictType() if isinstance(value, dict):
            for key, item in value.items():
                yield from _key(kind.key_type, key, path)
                yield from _form(kind.value_type, item, _join(path, key))
        case inspect.VarTupleType() if isinstance(value, list | tuple) and len(value) >= (
            kind.min_length or 0
        ):
            for index, item in enumerate(value):
                yield from _form(kind.item_type, item, f"{path}[{index}]")
        case _ if not _fits(kind, value):
            yield f"{path} is {_shown(value)}; expected {_allowed(kind)}"


def _struct(kind: inspect.StructType, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path or 'the scenario'} is {_shown(value)}; expected an object"
        return
    fields = {field.encode_name: field for field in kind.fields}
    for key in value:
        if key not in fields:
            close = get_close_matches(str(key), fields, 1)
            hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(fields)}"
            yield f"{_join(path, key)} is not a key of a scenario; {hint}"
    for name, field in fields.items():
        if name in value:
            yield from _form(field.type, value[name], _join(path, name))
        elif field.required:
            yield f"{_join(path, name)} is missing"


def _key(kind: inspect.Type, key: str, path: str) -> Iterator[str]:
    if isinstance(kind, inspect.Metadata) and isinstance(kind.type, inspect.StrType):
        allowed = (kind.extra_json_schema or {}).get("description", "another name")
        if not re.search(kind.type.pattern or "", key):
            yield f"{_join(path, key)} is not a key of {path}; expected {allowed}"


def _fits(kind: inspect.Type, value: Any) -> bool:
    match kind:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _within(kind, value)
        case inspect.FloatType():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and math.isfinite(value) and _within(kind, value)
        case inspect.LiteralType():
            return value in kind.values
        case inspect.StrType():
            low, high = kind.min_length or 0, kind.max_length or math.inf
            return isinstance(value, str) and low <= len(value) <= high and value.isprintable()
        case _:
            return False  # a list or an object was expected


def _within(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    above = value > kind.gt if kind.gt is not None else True
    return above and (kind.ge is None or value >= kind.ge) and (kind.le is None or value <= kind.le)


def _allowed(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"an integer from {kind.ge} to {kind.le}"
        case inspect.FloatType() if kind.gt is not None:
            return f"a number above {kind.gt:g} and at most {kind.le:,.0f}"
        case inspect.FloatType() if kind.ge is not None:
            return f"a number from {kind.ge:g} to {kind.le:g}"
        case inspect.FloatType():
            return "a number"
        case inspect.LiteralType():
            return " or ".join(json.dumps(value) for value in kind.values)
        case inspect.StrType():
            return f"a text of {kind.min_length} to {kind.max_length} printable characters"
        case inspect.VarTupleType():
            return "a list" + (" that is not empty" if kind.min_length else "")
        case _:
            return "an object"


def _join(path: str, key: object) -> str:
    text = str(key)
    name = text if re.fullmatch(r"\w{1,40}", text) else json.dumps(text[:40], ensure_ascii=False)
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "an empty list" if not value else "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, int) and not isinstance(value, bool):
        text = (
            f"{value}"
            if abs(value) < 10**20
            else f"{'-' * (value < 0)}1e{int(math.log10(abs(value)))}"
        )
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
