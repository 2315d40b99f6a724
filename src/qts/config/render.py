"""Settings as TOML: effective values, the template of a settings file, and changes of its keys.

A change leaves everything else in the file as it is, comments too.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from qts.config.decode import Origin
from qts.config.load import LoadedConfig
from qts.config.schema import Config, Setting, schema_of, settings_of
from qts.config.settings_file import dotted, read
from qts.domain import ConfigError, Secret

_PREFACE = """\
## Settings of QTS. Every key shows its default: remove the # before a key to change it.
## An environment variable overrides a key: {variable}=50 is {name} = 50.
## A secret may be stored in a separate file: url = {{ file = "path" }}, mode 600.
"""


def render(
    config: Config, origins: Mapping[str, Origin], secret: Callable[[Secret], str] = str
) -> str:
    """Return the settings as TOML, each with its origin; secrets are three stars."""
    lines = []
    for header, settings in _tables(settings_of(config)):
        lines += [f"\n{header}"] if header else []
        for setting in settings:
            value, origin = setting.of(config), origins.get(setting.name)
            source = f"{origin.kind}, {origin.where}" if origin else "default"
            if value is None:
                lines.append(f"# {setting.path[-1]} is not set  # {source}")
            else:
                lines.append(f"{setting.path[-1]} = {toml(value, secret)}  # {source}")
    return "\n".join(lines).lstrip("\n") + "\n"


def describe(found: LoadedConfig) -> dict[str, Any]:
    """Return value and origin of every setting by full name, for `--json`."""
    settings = {}
    for setting in settings_of(found.config):
        value, origin = setting.of(found.config), found.origins.get(setting.name)
        settings[setting.name] = {
            "value": msgspec.to_builtins(value, enc_hook=str),
            "from": origin.kind if origin else "default",
            "where": origin.where if origin else None,
        }
    return {"file": str(found.file) if found.file else None, "settings": settings}


def render_template() -> str:
    """Return a settings file that explains every key and changes none.

    Explanations begin with ##, settings with #: without the first # of every line it is valid TOML.
    """
    tables = schema_of(Config).tables
    example = next(s for s in schema_of(Config).settings.values() if s.path[0] == "events")
    lines = [_PREFACE.format(variable=example.variable, name=example.name)]
    for header, settings in _tables(settings_of()):
        if header:
            description = tables[settings[0].path[:-1]]
            lines += ["", *([f"## {description}."] if description else []), header]
        for setting in settings:
            lines += _explained(setting)
    return "\n".join(lines) + "\n"


def toml(value: Any, secret: Callable[[Secret], str] = str) -> str:
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        pairs = (f"{_key(name)} = {toml(each, secret)}" for name, each in value.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item, secret) for item in value) + "]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    text = secret(value) if isinstance(value, Secret) else str(value)
    # JSON leaves DEL as it is, TOML does not allow it.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if dotted((name,)) == name else toml(name)


def _explained(setting: Setting) -> Iterator[str]:
    yield f"## {setting.path[-1]}: {setting.description} ({setting.allowed})"
    if setting.default is None:
        yield f"## {setting.path[-1]} = {_example(setting)}"
    else:
        yield f"#{setting.path[-1]} = {toml(setting.default)}"


def _example(setting: Setting) -> str:
    if setting.secret:
        return '{ file = "path" }'
    return '"path"' if isinstance(setting.kind, inspect.CustomType) else '"text"'


def _tables(given: Iterable[Setting]) -> Iterator[tuple[str, list[Setting]]]:
    """Yield settings by table, those without one first, as TOML requires."""
    settings = sorted(given, key=lambda setting: len(setting.path) > 1)
    for table, group in groupby(settings, key=lambda setting: setting.path[:-1]):
        yield f"[{'.'.join(table)}]" if table else "", list(group)


_HEADER = re.compile(r"^\s*\[")


def with_keys(path: Path, table: str, values: Mapping[str, str]) -> str:
    """Return a settings file, empty if missing, with keys of a table set; values are TOML.

    Raises ConfigError, with what the operator has to write, where the file defines the table in a
    way that lines cannot be replaced in.
    """
    before = read(path).text if path.exists() else ""
    after = _with_keys(before, table, values)
    try:
        is_right = tomllib.loads(after) == _expected(before, table, values)
    except (ValueError, AttributeError):
        is_right = False
    if not is_right:
        wanted = ", ".join(f"{name} = {value}" for name, value in values.items())
        raise ConfigError(
            f"{path}: [{table}] cannot be changed line by line; write there: {wanted}"
        )
    return after


def write_private(path: Path, text: str, *, replace: bool = True) -> None:
    """Write the whole file or nothing, with mode 0600: it may contain secrets."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if not replace:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _with_keys(text: str, table: str, values: Mapping[str, str]) -> str:
    lines = text.splitlines()
    header = re.compile(rf"^\s*\[\s*{re.escape(table)}\s*\]\s*(#.*)?$")
    start = next((number for number, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        gap = [""] if lines else []
        lines += [*gap, f"[{table}]", *(f"{name} = {value}" for name, value in values.items())]
        return "\n".join(lines) + "\n"
    rest = range(start + 1, len(lines))
    end = next((number for number in rest if _HEADER.match(lines[number])), len(lines))
    for name, value in reversed(list(values.items())):
        key = re.compile(rf"^\s*{re.escape(name)}\s*=")
        found = [number for number in range(start + 1, end) if key.match(lines[number])]
        if found:
            lines[found[0]] = f"{name} = {value}"
        else:
            lines.insert(start + 1, f"{name} = {value}")
            end += 1
    return "\n".join(lines) + "\n"


def _expected(text: str, table: str, values: Mapping[str, str]) -> dict[str, Any]:
    found = tomllib.loads(text)
    inner = found
    for name in table.split("."):
        inner = inner.setdefault(name, {})
    inner.update(tomllib.loads("\n".join(f"{name} = {value}" for name, value in values.items())))
    return found
