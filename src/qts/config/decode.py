"""Conversion of one setting to its declared type: number, literal, path, secret, list of tables.

An error in a list of tables such as [[strategy]] names the line of its table.
"""

from __future__ import annotations

import math
import re
import shlex
import stat
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import inspect

from qts.config.schema import Setting, allowed, bare_type
from qts.config.settings_file import dotted, read_text, shown
from qts.domain import ConfigError, Secret, name_choices


class Origin(msgspec.Struct, frozen=True):
    """Source of a setting's value: `file:line`, or the name of a variable."""

    kind: Literal["file", "environment"]
    where: str


class RawSetting(msgspec.Struct, frozen=True):
    """Value of a setting before conversion."""

    setting: Setting
    value: Any
    origin: Origin
    folder: Path  # base of relative paths
    places: tuple[str, ...] = ()  # of each table, for a list of tables


def convert(given: RawSetting) -> Any:
    """Return the value in the setting's type; raise ConfigError if it does not fit."""
    setting, where = given.setting, given.origin.where
    if given.places or (is_table_list(setting.kind) and given.value == []):
        return convert_tables(given.places, given.value, setting)
    strict = given.origin.kind == "file"
    hook = partial(_decode, given.folder)
    try:
        value = msgspec.convert(given.value, setting.type, strict=strict, dec_hook=hook)
    except ConfigError as error:
        raise ConfigError(f"{where}: {setting.name}: {error}") from None
    except msgspec.ValidationError:
        value = None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        value_text = "" if setting.secret else f" = {shown(given.value)}"
        raise ConfigError(f"{where}: {setting.name}{value_text}: expected {setting.allowed}")
    return value


def _decode(folder: Path, kind: type, value: Any) -> Any:
    match value:
        case str() if kind is Secret and value.strip() == str(Secret("")):
            raise ConfigError("*** is the mask of a secret, not the secret itself")
        case str() if kind is Secret and value.strip():
            return Secret(value.strip())
        case {"file": str(path)} if kind is Secret and len(value) == 1:
            return _read_secret(_path(folder, path))
        case str() if kind is Path:
            return _path(folder, value)
    raise ValueError


def _path(folder: Path, text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise ValueError
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{shown(text)} names a user without a home directory") from None


def _read_secret(path: Path) -> Secret:
    text, mode = read_text(path, "secret file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"secret file {path} is accessible to others; run chmod 600 {shlex.quote(str(path))}"
        )
    if not text.strip():
        raise ConfigError(f"secret file {path} is empty")
    return Secret(text.strip())


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
