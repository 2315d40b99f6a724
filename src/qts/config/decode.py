"""Conversion of one setting to its declared type: numbers, literals, paths, secrets."""

from __future__ import annotations

import math
import shlex
import stat
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from qts.config.formatting import shown
from qts.config.schema import Setting
from qts.config.settings_file import read_text
from qts.config.table_list import convert_tables, is_table_list
from qts.domain import ConfigError, Secret


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
