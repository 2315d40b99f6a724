"""The settings file: search order, reading, the line of each key, its keys and values in messages.

Messages show a value on one line, without passwords.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from qts.domain import ConfigError
from qts.embedded import default_home

FILE_NAME = "qts.toml"
_MAX_BYTES = 1_000_000
_MAX_STATEMENT_LINES = 200
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LOGIN = re.compile(r"://\S*@")
_MAX_LENGTH = 60


@dataclass(frozen=True)
class SettingsFile:
    """Settings file that is valid TOML; its keys are not validated."""

    path: Path
    text: str = field(repr=False)  # may contain a password
    values: dict[str, Any] = field(repr=False)
    world_readable: bool

    def where(self, path: tuple[str, ...]) -> str:
        """Return `file:line` of a key, or of the table that contains it."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self.path}:{self._lines[path]}" if path else str(self.path)

    def table_places(self, path: tuple[str, ...], value: Any) -> tuple[str, ...]:
        """Return `file:line` of each table of a list of tables; nothing for another value."""
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            return ()
        return tuple(self.where((*path, str(number))) for number in range(len(value)))

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], int]:
        lines: dict[tuple[str, ...], int] = {}
        for path, line in _statements(self.text):
            lines.setdefault(path, line)
        return lines


def find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return `path`, else the first file in the search order, or None."""
    if path is not None:
        return path
    if "QTS_CONFIG" in environ:
        if not environ["QTS_CONFIG"].strip():
            raise ConfigError("QTS_CONFIG is empty; expected the path of a settings file")
        return Path(environ["QTS_CONFIG"])
    for candidate in (Path(FILE_NAME), default_home(environ) / FILE_NAME):
        if os.path.lexists(candidate):
            return candidate
    return None


def read(path: Path) -> SettingsFile:
    content, mode = read_text(path, "settings file")
    if content.startswith("\ufeff"):
        raise ConfigError(f"settings file {path} begins with a byte order mark; remove it")
    try:
        values = tomllib.loads(content)
    except RecursionError:
        raise ConfigError(f"settings file {path} is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(_broken(path, content, str(error))) from None
    return SettingsFile(path, content, values, world_readable=bool(mode & stat.S_IROTH))


def read_text(path: Path, what: str) -> tuple[str, int]:
    """Return text and mode of a regular file, read through one descriptor."""
    try:
        content, mode = _bytes(path)
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror or error}") from None
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{what} {path} is larger than {_MAX_BYTES} bytes")
    try:
        return content.decode(), mode
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{what} {path} is not UTF-8 text (line {line})") from None


def _bytes(path: Path) -> tuple[bytes, int]:
    # O_NONBLOCK: opening a pipe without a writer fails instead of blocking.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError("it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(_MAX_BYTES + 1), mode
    finally:
        os.close(descriptor)


def _broken(path: Path, content: str, message: str) -> str:
    place = _PLACE.search(message)
    reason = _PLACE.sub("", message)
    if place is None:
        return f"{path}: not valid TOML: {reason}"
    if place[1] is None:  # the end: column after the last character
        before = content.rstrip("\n").split("\n")
        return f"{path}:{len(before)}:{len(before[-1]) + 1}: not valid TOML: {reason}"
    return f"{path}:{place[1]}:{place[2]}: not valid TOML: {reason}"


def _statements(content: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield every path in a valid document, with the first line of its statement.

    tomllib reports no positions. In a valid document each statement is the shortest run of lines
    that is valid TOML.
    """
    table: tuple[str, ...] = ()
    tables: Counter[tuple[str, ...]] = Counter()  # of a list
    statement, start = "", 1
    for number, line in enumerate(content.split("\n"), 1):
        statement += line + "\n"
        try:
            parsed = tomllib.loads(statement)
        except ValueError:
            if number - start > _MAX_STATEMENT_LINES:
                return  # parsing a huge list line by line would take too long
            continue
        header = statement.lstrip().startswith("[")
        for path in _paths(parsed):
            yield (path if header else table + path), start
            if header:
                table = path
        if statement.lstrip().startswith("[["):
            table = (*table, str(tables[table]))
            tables[table[:-1]] += 1
            yield table, start
        statement, start = "", number + 1


def _paths(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (key,)
        if isinstance(value, dict):
            for path in _paths(value):
                yield (key, *path)


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
