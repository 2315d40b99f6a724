"""Package fronts that load a name's module on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from sys import modules
from types import ModuleType
from typing import Any


class _Front(ModuleType):
    """A package whose exported function keeps its name when a module of that name is imported."""

    _origins: dict[str, str]

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and self._origins.get(name) == value.__name__):
            super().__setattr__(name, value)


def lazy_exports(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose stub lists its names.

    The stub beside `file` (`__init__.pyi`) is the only list: type checkers read it as it is, and
    a name's module is imported when the name is first used. Every line of a stub that exports a
    name reads `from module import Name as Name`.
    """
    lines = Path(file).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()
    exports = [words for line in lines if (words := line.split())[:1] == ["from"]]
    origins = {name: module for _, module, _, name, *_ in exports}
    front = modules[package]
    vars(front)["_origins"] = origins
    front.__class__ = _Front

    def load(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(origins[name]), name)
        vars(front)[name] = value
        return value

    names = sorted(origins)
    return load, lambda: names, names
