"""Loading of strategy classes by name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from qts.domain import MANUAL, STOPS, RefusedError, nearest_name
from qts.strategies.strategy import Strategy

BUILTIN = ("MovingAverageSwing", "RsiScalper", "SurgeBreakout")


def builtin_strategies() -> dict[str, type[Strategy[Any]]]:
    """Return the built-in strategies by key."""
    package = importlib.import_module("qts.strategies")  # a static import would be a cycle
    return {kind.key: kind for kind in (getattr(package, name) for name in BUILTIN)}


def load_strategy(name: str) -> type[Strategy[Any]]:
    """Return the class that `rsi_scalper`, `package.mine:Mine` or `folder/mine.py:Mine` names."""
    source, colon, class_name = name.rpartition(":")
    if not colon:
        builtin = builtin_strategies()
        if name not in builtin:
            near = nearest_name(name, builtin)
            hint = f"; did you mean {near}?" if near else ""
            raise RefusedError(
                f"unknown strategy {name!r}; expected module:Class, path.py:Class or one of"
                f" {', '.join(sorted(builtin))}{hint}"
            )
        return builtin[name]
    module = _load_module(name, source)
    found = getattr(module, class_name, None)
    if found is None:
        raise RefusedError(f"strategy {name}: {source} has no class {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise RefusedError(f"strategy {name}: {class_name} must derive from qts.Strategy")
    if found.key in (MANUAL, STOPS):
        whose = "the operator" if found.key == MANUAL else "the stops"
        raise RefusedError(
            f"strategy {name}: its key is {found.key!r}, which orders of {whose} have; give it"
            f' another: class {class_name}(Strategy, key="...")'
        )
    return found


def source_digest(kind: type[Strategy[Any]]) -> str:
    """Return a digest of the file that defines a strategy; empty where it has none."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
    except OSError:
        return ""


def _load_module(name: str, source: str) -> ModuleType:
    try:
        is_file = source.endswith(".py")
        return _load_file(Path(source)) if is_file else importlib.import_module(source)
    except Exception as error:
        raise RefusedError(
            f"strategy {name} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    file = path.resolve()
    name = f"qts_strategy_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # msgspec resolves annotations through it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
