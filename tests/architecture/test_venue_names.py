"""No code branches on the name of a venue: what differs is behind the port."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import qts
from qts.brokers import venue_of
from qts.venues import BUILT_IN

SOURCE = Path(qts.__file__).parent
PACKAGES = ("app", "cli", "config", "feed", "history")
ADAPTERS = {"app/kis_venue.py", "app/upbit_venue.py"}


def branches(source: Path) -> list[str]:
    """Return every comparison, table or type check by venue, as `file:line`."""
    return [
        f"{file}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((source / package).rglob("*.py"))
        if (file := path.relative_to(source).as_posix()) not in ADAPTERS
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.expr | ast.MatchValue) and _is_branch(node)
    ]


def _is_branch(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, comparators=others):
            return any(map(_names, (left, *others)))
        case ast.MatchValue(value=value):
            return _names(value)
        case ast.Dict(keys=keys):
            return any(_names(key) for key in keys if key)
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            return any(title in ast.unparse(kinds) for title in ("Kis", "Upbit"))
    return False


def _names(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_names, node.elts))
    return isinstance(node, ast.Constant) and node.value in BUILT_IN


def test_nothing_branches_on_the_name_of_a_venue() -> None:
    assert branches(SOURCE) == []


@pytest.mark.parametrize(
    "code",
    [
        'if venue == "kis": pass',
        'if venue != "upbit": pass',
        'if venue in ("kis", other): pass',
        'if names == ("upbit",): pass',
        'match venue:\n    case "kis": pass',
        'rules = {"kis": 1}[venue]',
        "if isinstance(client, KisClient | UpbitClient): pass",
    ],
)
def test_a_branch_is_found(tmp_path: Path, code: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "venue.py").write_text(code)
    assert len(branches(tmp_path)) == 1


@pytest.mark.parametrize("name", BUILT_IN)
def test_our_venues_fit_the_port(name: str) -> None:
    assert venue_of(name).name == name
