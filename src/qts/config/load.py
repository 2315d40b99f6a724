"""Loading of the settings: each key is validated, then the rules of each table.

    defaults < settings file < DATABASE_URL, REDIS_URL < QTS_<TABLE>__<KEY>

Every problem is one line of the ConfigError: the place, the key's full name, the value (unless it
is a secret) and what is allowed.
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
    """Effective settings, and the origin of each that is not a default."""

    config: Config
    file: Path | None
    origins: dict[str, Origin]
    written: int  # settings in the file, including overridden ones


def load(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Return the settings; without `path`, of the first file in the search order."""
    return resolve(path, environ).config


def resolve(path: Path | None, environ: Mapping[str, str]) -> LoadedConfig:
    """Return the settings with their origins; raise ConfigError with every problem found."""
    schema = schema_of(Config)
    file = settings_file.find(path, environ)
    source = settings_file.read(file) if file is not None else None
    problems: list[str] = []
    layers = list(_from_file(schema, source, problems)) if source else []
    written = len(layers)
    layers += _from_environment(schema, environ, problems)
    values, origins = _merge(layers, problems)
    if source:
        problems += _readable_secrets(source, layers)
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
    if new := schema.renamed(path):
        return f"it was renamed to {new}"
    if near := schema.nearest(path):
        return f"did you mean {near}?"
    siblings = [key[-1] for key in [*schema.settings, *schema.tables] if key[:-1] == path[:-1]]
    return "known here: " + ", ".join(siblings)


def _from_environment(
    schema: Schema, environ: Mapping[str, str], problems: list[str]
) -> Iterator[RawSetting]:
    for setting, value, name in environment.overrides(schema, environ, problems):
        yield RawSetting(setting, value, Origin("environment", name), Path.cwd())


def _merge(
    layers: list[RawSetting], problems: list[str]
) -> tuple[dict[_Path, Any], dict[_Path, Origin]]:
    last = {given.setting.path: given for given in layers}
    values: dict[_Path, Any] = {}
    for given in layers:
        path = given.setting.path
        if given.setting.secret and given is not last[path]:
            continue  # an overridden secret file need not exist
        try:
            values[path] = convert(given)
        except ConfigError as error:
            values.pop(path, None)
            problems.append(str(error))
    return values, {path: given.origin for path, given in last.items()}


def _readable_secrets(source: SettingsFile, layers: list[RawSetting]) -> Iterator[str]:
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
    """Return the table with the values set; its struct checks the rules between fields."""
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
        if here.keys() <= values.keys():  # otherwise a default replaces a refused value
            problems.append(_broken_rule(prefix, str(error), here))
        return table


def _broken_rule(prefix: _Path, message: str, here: Mapping[_Path, Origin]) -> str:
    """Return the error of a table's rule; a key at its beginning gets its full name."""
    words = re.findall(r"[\w.]*\w", message)
    named = [
        origin.where for path, origin in here.items() if ".".join(path[len(prefix) :]) in words
    ]
    where = ", ".join(named or [origin.where for origin in here.values()])
    first = message.partition(" ")[0]
    begins_with_key = (*prefix, *first.split(".")) in schema_of(Config).settings
    table = ".".join(prefix) + ("." if begins_with_key else ": ") if prefix else ""
    return f"{where}: {table}{message}"
