"""Defaults, then the file, then the environment: checked key by key, then room by room.

    defaults < settings file < DATABASE_URL, REDIS_URL < QTS_<ROOM>__<KEY>

Every problem found is one line of the ConfigError: where it was given, the key's full name,
the value (unless it is a secret) and what is allowed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from qts.config import environment, settings_file
from qts.config.decode import Origin, RawSetting, convert
from qts.config.formatting import dotted
from qts.config.schema import Config, Schema, schema_of
from qts.config.settings_file import SettingsFile
from qts.domain import ConfigError

_Table = TypeVar("_Table", bound=msgspec.Struct)
_Path = tuple[str, ...]


class LoadedConfig(msgspec.Struct, frozen=True):
    """The settings in force, and where each that is not a default came from."""

    config: Config
    file: Path | None
    origins: dict[str, Origin]
    written: int  # settings in the file, overridden ones too


def load(path: Path | None, environ: Mapping[str, str]) -> Config:
    """The settings in force; `path` None: the file that QTS_CONFIG or the search order names."""
    return resolve(path, environ).config


def resolve(path: Path | None, environ: Mapping[str, str]) -> LoadedConfig:
    schema = schema_of(Config)
    file = settings_file.find(path, environ)
    source = settings_file.read(file) if file is not None else None
    problems: list[str] = []
    layers = list(_from_file(schema, source, problems)) if source else []
    written = len(layers)
    layers += _from_environment(schema, environ, problems)
    values, origins = _decide(layers, problems)
    if source:
        problems += _exposed(source, layers)
    config = _assemble(Config(), (), values, origins, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return LoadedConfig(
        config, file, {".".join(key): origin for key, origin in origins.items()}, written
    )


def _from_file(schema: Schema, source: SettingsFile, problems: list[str]) -> Iterator[RawSetting]:
    folder = source.path.absolute().parent

    def walk(table: dict[str, Any], prefix: _Path) -> Iterator[RawSetting]:
        for key, value in table.items():
            path = (*prefix, key)
            where = source.where(path)
            if path in schema.settings:
                yield RawSetting(schema.settings[path], value, Origin("file", where), folder)
            elif path not in schema.tables:
                problems.append(f"{where}: unknown key {dotted(path)}; {_hint(schema, path)}")
            elif isinstance(value, dict):
                yield from walk(value, path)
            else:
                problems.append(f"{where}: {dotted(path)} is a table, written [{dotted(path)}]")

    yield from walk(source.values, ())


def _hint(schema: Schema, path: _Path) -> str:
    near = schema.nearest(path)
    if near:
        return f"did you mean {near}?"
    beside = [key[-1] for key in [*schema.settings, *schema.tables] if key[:-1] == path[:-1]]
    return "known here: " + ", ".join(beside)


def _from_environment(
    schema: Schema, environ: Mapping[str, str], problems: list[str]
) -> Iterator[RawSetting]:
    for setting, value, name in environment.overrides(schema, environ, problems):
        yield RawSetting(setting, value, Origin("environment", name), Path.cwd())


def _decide(
    layers: list[RawSetting], problems: list[str]
) -> tuple[dict[_Path, Any], dict[_Path, Origin]]:
    last = {given.setting.path: given for given in layers}
    values: dict[_Path, Any] = {}
    for given in layers:
        path = given.setting.path
        if given.setting.secret and given is not last[path]:
            continue  # a key file that only another machine has is no problem when overridden
        try:
            values[path] = convert(given)
        except ConfigError as error:
            values.pop(path, None)
            problems.append(str(error))
    return values, {path: given.origin for path, given in last.items()}


def _exposed(source: SettingsFile, layers: list[RawSetting]) -> Iterator[str]:
    inline = [
        given.setting.name
        for given in layers
        if given.setting.secret and given.origin.kind == "file" and isinstance(given.value, str)
    ]
    if inline and source.world_readable:
        what = f"contains secrets ({', '.join(inline)}) and everyone can read it"
        yield f"{source.path}: {what}; run chmod 600 {shlex.quote(str(source.path))}"


def _assemble(
    table: _Table,
    prefix: _Path,
    values: Mapping[_Path, Any],
    origins: Mapping[_Path, Origin],
    problems: list[str],
) -> _Table:
    """The table with the values laid over it; the rooms check their own cross-field rules here."""
    fields: dict[str, Any] = {}
    for name in table.__struct_fields__:
        path, current = (*prefix, name), getattr(table, name)
        if isinstance(current, msgspec.Struct):
            fields[name] = _assemble(current, path, values, origins, problems)
        else:
            fields[name] = values.get(path, current)
    try:
        return type(table)(**fields)
    except ValueError as error:
        here = {path: origin for path, origin in origins.items() if path[: len(prefix)] == prefix}
        if here.keys() <= values.keys():  # else a default stands in for a refused value
            problems.append(_broken_rule(prefix, str(error), here))
        return table


def _broken_rule(prefix: _Path, message: str, here: Mapping[_Path, Origin]) -> str:
    """A room's own refusal; where it begins with a key of the room, that becomes its full name."""
    words = re.findall(r"[\w.]*\w", message)
    named = [
        origin.where for path, origin in here.items() if ".".join(path[len(prefix) :]) in words
    ]
    where = ", ".join(named or [origin.where for origin in here.values()])
    first = message.partition(" ")[0]
    begins_with_key = (*prefix, *first.split(".")) in schema_of(Config).settings
    room = ".".join(prefix) + ("." if begins_with_key else ": ") if prefix else ""
    return f"{where}: {room}{message}"
