"""Definitions of the public names in the source: where each stands, its members and docstrings.

Only the syntax is read: nothing is imported, so the reference needs no compiled part.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
_NO_TEXT = ("noqa", "type:", "fmt:", "---")  # comments for tools


class Origin(NamedTuple):
    """Module that defines a name."""

    module: str
    name: str


class Attribute(NamedTuple):
    """Field of a struct, attribute of a class, or member of an enumeration."""

    name: str
    annotation: ast.expr | None
    default: ast.expr | None
    text: str


@dataclass(frozen=True)
class Definition:
    """A class, a function or a value, with the module around it."""

    origin: Origin
    node: ast.ClassDef | Function | ast.Assign
    names: Names

    @property
    def docstring(self) -> str:
        if isinstance(self.node, ast.Assign):
            return _text_after(self.names.module(self.origin.module).body, self.node)
        return ast.get_docstring(self.node) or ""

    @cached_property
    def bases(self) -> list[Definition]:
        """Base classes that QTS defines."""
        found = []
        for base in self.node.bases if isinstance(self.node, ast.ClassDef) else ():
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            origin = self.names.origin(self.origin.module, name)
            if origin is not None:
                found.append(self.names.definition(origin))
        return found

    @property
    def is_enumeration(self) -> bool:
        bases = self.node.bases if isinstance(self.node, ast.ClassDef) else []
        return any(ast.unparse(base).endswith("Enum") for base in bases)

    @property
    def methods(self) -> list[Function]:
        body = self.node.body if isinstance(self.node, ast.ClassDef) else []
        return [each for each in body if isinstance(each, Function)]

    @property
    def attributes(self) -> Iterator[Attribute]:
        """Public fields and class attributes, with the text beside or below each."""
        body = self.node.body if isinstance(self.node, ast.ClassDef) else []
        comments = self.names.comments(self.origin.module)
        for each in body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                name, annotation = each.target.id, each.annotation
            elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                name, annotation = each.targets[0].id, None
            else:
                continue
            lines = range(each.lineno, (each.end_lineno or each.lineno) + 1)
            beside = " ".join(comments[line] for line in lines if line in comments)
            if not name.startswith("_"):
                yield Attribute(name, annotation, each.value, _text_after(body, each) or beside)


class Names:
    """Modules of a source tree; a name is followed through imports to its definition."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.module = cache(self._parse)
        self.comments = cache(self._comments)

    def file(self, module: str) -> Path:
        path = self.source.joinpath(*module.split("."))
        found = (path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py")
        return next(each for each in found if each.is_file())

    def docstring(self, module: str) -> str:
        """Return the text of a module; that of a package stands beside its stub."""
        file = self.file(module)
        return ast.get_docstring(ast.parse(file.with_suffix(".py").read_text("utf-8"))) or ""

    def exports(self, module: str) -> list[Origin]:
        """Return the public names: those of the stub, or those that the module defines."""
        names = []
        for each in self.module(module).body:
            if isinstance(each, ast.ImportFrom) and self.file(module).suffix == ".pyi":
                names += [alias.asname or alias.name for alias in each.names]
            elif isinstance(each, ast.ClassDef | Function):
                names.append(each.name)
        public = [name for name in names if not name.startswith("_")]
        found = [self.origin(module, name) for name in public]
        return [each for each in found if each is not None]

    def origin(self, module: str, name: str) -> Origin | None:
        """Return where a name of a module is defined; None outside of QTS."""
        for each in self.module(module).body:
            if isinstance(each, ast.ClassDef | Function) and each.name == name:
                return Origin(module, name)
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
                return Origin(module, name)
            if isinstance(each, ast.ImportFrom) and (each.module or "").split(".")[0] == "qts":
                for alias in each.names:
                    if (alias.asname or alias.name) == name:
                        return self.origin(str(each.module), alias.name)
        return None

    def definition(self, origin: Origin) -> Definition:
        for each in self.module(origin.module).body:
            is_named = isinstance(each, ast.ClassDef | Function) and each.name == origin.name
            if isinstance(each, ast.Assign):
                is_named = ast.unparse(each.targets[0]) == origin.name
            if is_named and isinstance(each, ast.ClassDef | Function | ast.Assign):
                return Definition(origin, each, self)
        raise LookupError(origin)

    def _parse(self, module: str) -> ast.Module:
        return ast.parse(self.file(module).read_text("utf-8"))

    def _comments(self, module: str) -> dict[int, str]:
        lines = io.StringIO(self.file(module).read_text("utf-8"))
        found = {}
        for token in tokenize.generate_tokens(lines.readline):
            text = token.string.lstrip("# ")
            if token.type == tokenize.COMMENT and not text.startswith(_NO_TEXT):
                found[token.start[0]] = text
        return found


def _text_after(body: list[ast.stmt], node: ast.stmt) -> str:
    """Return the text in the statement after an assignment, if it is one."""
    after = body[body.index(node) + 1 :][:1]
    if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
        return str(after[0].value.value)
    return ""
