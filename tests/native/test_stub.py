"""The hand-written stub names exactly what the module has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import qts
from qts import _native

STUB = Path(qts.__file__).with_name("_native.pyi")
# Every class has these, spelled out or not.
PLAIN = {"__init__", "__new__", "__doc__", "__module__"}


def stub_names() -> dict[str, set[str]]:
    """Public name -> the names inside it (empty unless it is a class)."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = set()
    return {name: inner - PLAIN for name, inner in names.items() if not name.startswith("_")}


def module_names() -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for name, value in vars(_native).items():
        if not name.startswith("_"):
            names[name] = set(vars(value)) - PLAIN if isinstance(value, type) else set()
    return names


def test_stub_and_module_have_the_same_names() -> None:
    assert stub_names() == module_names()


@pytest.mark.parametrize("name", sorted(n for n in module_names() if not n.isupper()))
def test_every_function_class_and_method_is_documented(name: str) -> None:
    thing = getattr(_native, name)
    assert thing.__doc__
    for inner in module_names()[name]:
        assert inner.startswith("__") or getattr(thing, inner).__doc__, f"{name}.{inner}"
