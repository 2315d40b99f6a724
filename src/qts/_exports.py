"""Package fronts that load a name's module on first use."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from sys import modules
from typing import Any


def lazy_exports(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose stub lists its names.

    The stub beside `file` (`__init__.pyi`) is the only list: type checkers read it as it is, and
    a name's module is imported when the name is first used.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_bytes())
    origins = {
        alias.name: node.module or ""
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def load(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(origins[name]), name)
        setattr(modules[package], name, value)
        return value

    names = sorted(origins)
    return load, lambda: names, names
