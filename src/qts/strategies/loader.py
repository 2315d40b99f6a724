"""Strategies by name: one that ships, module:Class, or path.py:Class."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from qts.domain import RefusedError
from qts.strategies.strategy import Strategy

BUILTIN = ("MovingAverageSwing", "RsiScalper", "SurgeBreakout")


def builtin_strategies() -> dict[str, type[Strategy[Any]]]:
    """Return the strategies that ship with QTS, by key."""
    package = importlib.import_module("qts.strategies")  # exports this module, too
    return {kind.key: kind for kind in (getattr(package, name) for name in BUILTIN)}


def load_strategy(name: str) -> type[Strategy[Any]]:
    """`rsi_scalper`, `my_package.mine:Mine` or `folder/mine.py:Mine`."""
    where, colon, kind = name.rpartition(":")
    if not colon:
        known = builtin_strategies()
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise RefusedError(
                f"strategy {name!r} is not known; expected module:Class, path.py:Class or one of"
                f" {', '.join(sorted(known))}{hint}"
            )
        return known[name]
    module = _module(name, where)
    found = getattr(module, kind, None)
    if found is None:
        raise RefusedError(f"strategy {name}: {where} has no {kind or 'class of that name'}")
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise RefusedError(f"strategy {name}: {kind} is no Strategy; derive it from qts.pipeline's")
    return found


def _module(name: str, where: str) -> ModuleType:
    try:
        return _of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:
        raise RefusedError(
            f"strategy {name} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    place = path.resolve()
    name = f"qts_strategy_{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # structs look their annotations up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
