"""Conversion of a list of tables such as [[strategy]]: an error names the line of its table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

from qts.config.formatting import allowed, dotted, shown
from qts.config.schema import Setting, bare_type
from qts.domain import ConfigError, name_choices

_PATH = re.compile(r" - at `\$(?:\.(?P<path>[^`]*))?`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def is_table_list(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.StructType)


def parse_tables(text: str, where: str, setting: Setting) -> list[dict[str, Any]]:
    """Return the tables of a text as in [{ class = "rsi_scalper" }]."""
    try:
        tables = tomllib.loads(f"tables = {text}")
    except (ValueError, RecursionError):
        tables = {}
    found = tables.get("tables")
    if len(tables) != 1 or not isinstance(found, list):
        found = [None]
    if not all(isinstance(each, dict) for each in found):
        raise ConfigError(
            f"{where}: {setting.name} = {shown(text)}: expected a list of tables, as in"
            ' [{ class = "rsi_scalper" }]'
        )
    return found


def convert_tables(places: Sequence[str], tables: Sequence[Any], setting: Setting) -> Any:
    """Return the structs of the tables; raise ConfigError for the first that does not fit."""
    if not is_table_list(setting.kind):
        raise ConfigError(f"{places[0]}: {setting.name}: expected {setting.allowed}")
    struct: inspect.StructType = setting.kind.item_type  # type: ignore[attr-defined]
    return tuple(
        _convert(where, table, struct, setting.name)
        for where, table in zip(places, tables, strict=True)
    )


def _convert(where: str, table: Any, struct: inspect.StructType, name: str) -> Any:
    try:
        return msgspec.convert(table, struct.cls)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_described(str(error), table, struct, name)}") from None


def _described(message: str, table: Any, struct: inspect.StructType, name: str) -> str:
    """Return what is wrong with a table: the key, its value, what is allowed."""
    found = _PATH.search(message)
    parts = re.split(r"[.\[]", found["path"]) if found and found["path"] else []
    path, kind, value = [name], _field_type(struct, ()), table
    for part in parts:
        if not isinstance(kind, inspect.StructType) or not isinstance(value, dict):
            break
        path.append(part)
        kind, value = _field_type(kind, (part,)), value.get(part)
    key = dotted(tuple(path))
    if isinstance(kind, inspect.StructType) and (unknown := _UNKNOWN.search(message)):
        names = [each.encode_name for each in kind.fields]
        return f"unknown key {key}.{unknown[1]}; expected {name_choices(unknown[1], names)}"
    if missing := _MISSING.search(message):
        return f"{key}.{missing[1]} is missing; expected {_description(kind, missing[1])}"
    if message.startswith("Expected"):
        return f"{key} = {shown(value)}: expected {allowed(kind)}"
    return f"{key}: {_PATH.sub('', message)}"  # a rule between fields


def _field_type(struct: inspect.StructType, path: tuple[str, ...]) -> inspect.Type:
    kind: inspect.Type = struct
    for part in path:
        fields = {each.encode_name: each.type for each in struct.fields}
        kind = bare_type(fields.get(part, struct))
    return kind


def _description(kind: inspect.Type, name: str) -> str:
    fields = kind.fields if isinstance(kind, inspect.StructType) else ()
    for each in fields:
        if each.encode_name == name and isinstance(each.type, inspect.Metadata):
            return str((each.type.extra_json_schema or {}).get("description", ""))
    return "it"
