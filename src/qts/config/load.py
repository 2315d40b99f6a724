"""Loading of the settings: each key is validated, then the rules of each table.

    defaults < settings file < DATABASE_URL, REDIS_URL < QTS_<TABLE>__<KEY>

Every problem is one line of the ConfigError: the place, the key's full name, the value (unless it
is a secret) and what is allowed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import inspect

from qts.brokers import venue_of
from qts.config import settings_file
from qts.config.decode import Origin, RawSetting, convert, is_table_list, parse_tables
from qts.config.schema import Config, Schema, Setting, schema_of, variable_of
from qts.config.settings_file import SettingsFile, dotted
from qts.domain import ConfigError, RefusedError, nearest_name, split_names
from qts.venues import BUILT_IN, VenuesConfig, is_venue

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
    skipped = [f"{variable_of('.'.join(path))}__" for path in schema.skipped]
    found = []
    for name in sorted(environ):
        if not name.startswith("QTS_") or name in _NOT_SETTINGS:
            continue
        if name.startswith((_NOT_SETTINGS_PREFIX, *skipped)):
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
    if is_table_list(setting.kind):
        return parse_tables(text, name, setting)
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
    file = settings_file.find(path, environ)
    source = settings_file.read(file) if file is not None else None
    problems: list[str] = []
    venues, skipped = venue_tables(source.values if source else {}, environ, problems)
    schema = msgspec.structs.replace(
        schema_of(Config, venues), skipped=tuple(("venues", name) for name in skipped)
    )
    layers = list(_from_file(schema, source, problems)) if source else []
    written = len(layers)
    layers += _from_environment(schema, environ, problems)
    values, origins = _merge(layers, problems)
    if source:
        problems += _readable_secrets(source, layers)
    config = _assemble(Config(venues=venues()), (), values, origins, problems)
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
                places = source.table_places(path, value)
                origin = Origin("file", where)
                yield RawSetting(schema.settings[path], value, origin, folder, places)
            elif path in schema.skipped:
                continue
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
    for setting, value, name in overrides(schema, environ, problems):
        places = (name,) * len(value) if is_table_list(setting.kind) else ()
        yield RawSetting(setting, value, Origin("environment", name), Path.cwd(), places)


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
            known = schema_of(type(table)).settings
            problems.append(_broken_rule(prefix, str(error), here, known))
        return table


def _broken_rule(
    prefix: _Path, message: str, here: Mapping[_Path, Origin], known: Collection[_Path]
) -> str:
    """Return the error of a table's rule; a key at its beginning gets its full name."""
    words = re.findall(r"[\w.]*\w", message)
    named = [
        origin.where for path, origin in here.items() if ".".join(path[len(prefix) :]) in words
    ]
    where = ", ".join(named or [origin.where for origin in here.values()])
    first = message.partition(" ")[0]
    begins_with_key = tuple(first.split(".")) in known
    table = ".".join(prefix) + ("." if begins_with_key else ": ") if prefix else ""
    return f"{where}: {table}{message}"


# Tables of venues that packages add: [venues.NAME], declared by the venue's own struct. A venue
# that the settings choose or have a table of is imported; one that does not load is a problem only
# where it is chosen, and its table is skipped otherwise.

_CHOICES = (("feed", "venue"), ("brokers", "broker"))
_PREFIX = "QTS_VENUES__"


def venue_tables(
    values: Mapping[str, Any], environ: Mapping[str, str], problems: list[str]
) -> tuple[type[VenuesConfig], list[str]]:
    """Return the struct of [venues] for these settings, and the names whose tables are skipped."""
    chosen = set(_chosen(values, environ))
    found, skipped = [], []
    for name in sorted(chosen | set(_tables(values, environ))):
        if name in BUILT_IN or not is_venue(name):
            continue  # its key is ours, or unknown
        try:
            venue_of(name)
            found.append(name)
        except RefusedError as error:
            skipped.append(name)
            if name in chosen:
                problems.append(str(error))
    return venues_struct(tuple(found)), skipped


@cache
def venues_struct(names: tuple[str, ...]) -> type[VenuesConfig]:
    """Return VenuesConfig with the tables of these venues too."""
    if not names:
        return VenuesConfig
    venues = [venue_of(name) for name in names]
    fields = [
        (each.name, Annotated[each.settings, msgspec.Meta(description=each.title)], each.settings())
        for each in venues
    ]
    struct: Any = msgspec.defstruct(
        "VenuesConfig",
        fields,
        bases=(VenuesConfig,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast(type[VenuesConfig], struct)


def _chosen(values: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[str]:
    for table, key in _CHOICES:
        given: Any = environ.get(f"QTS_{table}__{key}".upper())
        if given is None and isinstance(values.get(table), dict):
            given = values[table].get(key)
        names = given if isinstance(given, list) else [given]
        for each in names:
            yield from split_names(each) if isinstance(each, str) else ()


def _tables(values: Mapping[str, Any], environ: Mapping[str, str]) -> Iterable[str]:
    tables = values.get("venues")
    yield from tables if isinstance(tables, dict) else ()
    for name in environ:
        if name.startswith(_PREFIX):
            yield name.removeprefix(_PREFIX).lower().partition("__")[0]
