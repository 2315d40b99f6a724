"""The documented error tree matches the classes, and every error has an exit code."""

from __future__ import annotations

import inspect
import re

from qts import domain
from qts.domain import OperationError, QtsError, RefusedError, errors

ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception)
}


def _drawn() -> dict[str, str | None]:
    """Return child -> parent of the tree in the module docstring."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"(\s*[│├└─ ]*)([A-Z]\w+)(\s{2,}\S|$)", line):
            depth = len(found[1])
            while above and above[-1][0] >= depth:
                above.pop()
            parents[found[2]] = above[-1][1] if above else None
            above.append((depth, found[2]))
    return parents


def test_documented_tree_matches_the_classes() -> None:
    real = {
        name: None if kind is QtsError else kind.__bases__[0].__name__
        for name, kind in ERRORS.items()
    }
    assert _drawn() == real


def test_every_error_is_exported() -> None:
    assert set(ERRORS) <= set(dir(domain))


def test_refused_exits_with_2_and_operation_error_with_1() -> None:
    for kind in ERRORS.values():
        assert issubclass(kind, QtsError)
        assert kind.exit_code == (2 if issubclass(kind, RefusedError) else 1)
    assert not issubclass(RefusedError, OperationError)
