"""Scenario files: lookup by name or path, and their JSON, whose keys are not yet checked."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from qts.domain import ScenarioError, nearest_name

_BUILTIN = Path(__file__).parent / "scenarios"
_MAX_BYTES = 1_000_000


def builtin_scenarios() -> dict[str, Path]:
    """Return the files of the built-in scenarios by name."""
    return {path.stem: path for path in sorted(_BUILTIN.glob("*.json"))}


def find(path_or_name: str | Path) -> Path:
    """Return the file of a built-in name or a path; a name takes precedence over a file."""
    names = builtin_scenarios()
    text = str(path_or_name)
    if isinstance(path_or_name, str) and text in names:
        return names[text]
    path = Path(path_or_name).expanduser()
    if path.name != text or path.suffix or os.path.lexists(path):
        return path
    near = nearest_name(text, names)
    hint = f"did you mean {near}? " if near else ""
    raise ScenarioError(
        f"no scenario {_quoted(text)}: {hint}QTS ships {', '.join(names)};"
        " anything else is the path of a file"
    )


def read(path: Path) -> Any:
    text = _text(path)
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise ScenarioError(f"{place}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise ScenarioError(f"{path}: nested too deeply") from None
    except ValueError as error:  # a repeated key, or a number of thousands of digits
        raise ScenarioError(f"{path}: {str(error).partition(';')[0]}") from None


def _text(path: Path) -> str:
    try:
        # O_NONBLOCK: a pipe without a writer is refused below instead of blocking.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScenarioError(f"cannot read scenario {_quoted(str(path))}: {reason}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise ScenarioError(f"cannot read scenario {path}: it is {kind}")
        content = os.read(descriptor, _MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MAX_BYTES:
        raise ScenarioError(f"scenario {path} is larger than {_MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"scenario {path} is not UTF-8 text (line {line})") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {_quoted(twice)} appears twice in one object; expected once")
    return values


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 80 else text[:80] + "…", ensure_ascii=False)
