"""Changes of a settings file that leave everything else in it as it is, comments too."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qts.config.settings_file import read
from qts.domain import ConfigError

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
