"""Overrides from the environment: QTS_<TABLE>__<KEY>, DATABASE_URL and REDIS_URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import inspect

from qts.config.schema import Schema, Setting, variable_of
from qts.domain import ConfigError, nearest_name

# Variables that hosting platforms set; QTS_ variables override them.
COMMON = {"DATABASE_URL": ("database", "url"), "REDIS_URL": ("cache", "url")}
_FILE = "__FILE"  # QTS_DATABASE__URL__FILE=path is database.url = { file = "path" }
_NOT_SETTINGS = {"QTS_CONFIG"}
_NOT_SETTINGS_PREFIX = "QTS_TEST_"


def overrides(
    schema: Schema, environ: Mapping[str, str], problems: list[str]
) -> list[tuple[Setting, Any, str]]:
    """Return setting, value and variable of every override; later ones take precedence."""
    found = [
        (schema.settings[path], environ[name], name)
        for name, path in COMMON.items()
        if name in environ and path in schema.settings
    ]
    found += _own(schema, environ, problems)
    given: list[tuple[Setting, Any, str]] = []
    for setting, text, name in found:
        try:
            given.append((setting, _value(setting, text, name), name))
        except ConfigError as error:
            problems.append(str(error))
    return given


def _own(
    schema: Schema, environ: Mapping[str, str], problems: list[str]
) -> list[tuple[Setting, str, str]]:
    known = {setting.variable: setting for setting in schema.settings.values()}
    known |= {name + _FILE: setting for name, setting in known.items() if setting.secret}
    found = []
    for name in sorted(environ):
        if not name.startswith("QTS_") or name in _NOT_SETTINGS:
            continue
        if name.startswith(_NOT_SETTINGS_PREFIX):
            continue
        if name not in known:
            problems.append(_unknown(schema, name, known))
        elif name.endswith(_FILE) and name.removesuffix(_FILE) in environ:
            problems.append(f"{name}: {name.removesuffix(_FILE)} is set as well; set one of them")
        else:
            found.append((known[name], environ[name], name))
    return found


def _value(setting: Setting, text: str, name: str) -> Any:
    if any("\ud800" <= char <= "\udfff" for char in text):  # bytes that are not UTF-8
        raise ConfigError(f"{name}: {setting.name} is not UTF-8 text")
    if not text.strip() and not isinstance(setting.kind, inspect.StrType):
        raise ConfigError(f"{name}: {setting.name} is empty; expected {setting.allowed}")
    if name.endswith(_FILE) and setting.secret:
        return {"file": text}
    if isinstance(setting.kind, inspect.ListType | inspect.VarTupleType):
        return [part.strip() for part in text.split(",")]
    if isinstance(setting.kind, inspect.StrType | inspect.CustomType):
        return text
    return text.strip()


def _unknown(schema: Schema, name: str, known: Mapping[str, Setting]) -> str:
    shown = name if name.isprintable() else ascii(name)
    path = tuple(name.removeprefix("QTS_").lower().split("__"))
    if new := schema.renamed(path):
        hint = f"it was renamed to {variable_of(new)}"
    elif near := nearest_name(name, known, cutoff=0.7):
        hint = f"did you mean {near}?"
    else:
        hint = f"settings are written as in {min(known)}"
    return f"{shown}: unknown setting in the environment; {hint}"
