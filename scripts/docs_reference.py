"""Reference of the public names, as Markdown pages written from docstrings and annotations.

A public name without a docstring is a problem that ends the build.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path

from docs_names import Attribute, Definition, Function, Names, Origin

PACKAGES = ("qts", "qts.client", "qts.testing")
TITLE = "look up a class or a function"  # in the navigation
_WIDTH = 84
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def path_of(package: str) -> Path:
    return Path("reference") / f"{package}.md"


class Reference:
    """Pages of the packages, and what is missing in the source."""

    def __init__(self, source: Path) -> None:
        self._names = Names(source)
        self._on_page = {package: self._documented(package) for package in PACKAGES}
        self._links = {
            origin: f"{package}.html#{origin.name.lower()}"
            for package in reversed(PACKAGES)
            for origin in self._on_page[package]
        }
        self.problems: list[str] = []
        self.pages = {path_of(package): self._page(package) for package in PACKAGES}

    def _documented(self, package: str) -> list[Origin]:
        """Return the names of a page: what is exported, and what its methods return."""
        exported = self._names.exports(package)
        found = dict.fromkeys(exported)
        if self._names.file(package).suffix == ".py":  # a module returns types of other packages
            for each in map(self._names.definition, exported):
                for method in each.methods:
                    for name in _NAME.findall(ast.unparse(method.returns or ast.Constant(None))):
                        origin = self._names.origin(package, name)
                        if origin and isinstance(self._names.definition(origin).node, ast.ClassDef):
                            found[origin] = None
        return sorted(found, key=lambda each: (each not in exported, each.name.lower()))

    # --- pages ------------------------------------------------------------------------------------

    def _page(self, package: str) -> str:
        parts = [f"# `{package}`", self._with_links(self._names.docstring(package))]
        for origin in self._on_page[package]:
            parts += self._entry(self._names.definition(origin))
        return "\n\n".join(filter(None, parts)) + "\n"

    def _entry(self, found: Definition) -> Iterator[str]:
        name = found.origin.name
        yield f"## `{name}`"
        yield self._declaration(found)
        yield self._text(found.docstring, found, name)
        yield self._attributes(found)
        methods = list(self._methods(found))
        for owner, method in methods:
            if not _is_fixture(method) and not _is_check(method):
                yield f"### `{name}.{method.name}`"
                yield self._signature(owner, method)
                yield self._method_text(found, owner, method)
        if fixtures := [each for each in methods if _is_fixture(each[1])]:
            texts = [(each.name, self._method_text(found, owner, each)) for owner, each in fixtures]
            yield "Fixtures, which a subclass may define:"
            yield "\n".join(f"- `{each}`: {' '.join(text.split())}" for each, text in texts)
        if checks := [each.name for _, each in methods if _is_check(each)]:
            yield "What is checked:"
            yield "\n".join(f"- {each.removeprefix('test_').replace('_', ' ')}" for each in checks)

    def _methods(self, found: Definition) -> Iterator[tuple[Definition, Function]]:
        """Yield public methods, also those of bases that have no entry of their own."""
        own = [each for each in found.methods if not each.name.startswith("_")]
        yield from ((found, each) for each in own)
        taken = {each.name for each in own}
        for base in found.bases:
            if base.origin not in self._links:
                yield from (each for each in self._methods(base) if each[1].name not in taken)

    def _method_text(self, found: Definition, owner: Definition, method: Function) -> str:
        docstring = ast.get_docstring(method) or _inherited(found, method.name)
        return self._text(docstring, owner, f"{found.origin.name}.{method.name}")

    def _text(self, docstring: str, found: Definition, name: str) -> str:
        if not docstring:
            file = self._names.file(found.origin.module).relative_to(self._names.source.parent)
            self.problems.append(f"{file}: {name} has no docstring; the reference shows it")
        return self._with_links(docstring)

    def _with_links(self, docstring: str) -> str:
        """Return a docstring in which pages, and the names that have an entry, are links."""
        entries = {
            origin.name: link.replace(".html#", ".md#") for origin, link in self._links.items()
        }
        return re.sub(
            r"`(\w+)`",
            lambda match: f"[{match[0]}]({entries[match[1]]})" if match[1] in entries else match[0],
            re.sub(r"(?<!`)\bdocs/[\w-]+\.md", r"`\g<0>`", docstring),
        )

    # --- parts of an entry ------------------------------------------------------------------------

    def _declaration(self, found: Definition) -> str:
        node, name = found.node, found.origin.name
        if isinstance(node, ast.Assign):
            return _pre(f"{name} = {self._linked(found, node.value)}")
        if not isinstance(node, ast.ClassDef):
            return self._signature(found, node)
        start = next((each for each in found.methods if each.name == "__init__"), None)
        of = [each for each in found.bases if each.origin in self._links]
        bases = ", ".join(self._linked(found, ast.Name(each.origin.name)) for each in of)
        after = f"  # a {bases}" if bases else ""
        if start is None:
            return _pre(f"class {name}{after}")
        return _pre(f"class {name}{self._arguments(found, start.args, len(name) + 6)}{after}")

    def _signature(self, found: Definition, node: Function) -> str:
        decorators = [ast.unparse(each) for each in node.decorator_list]
        returns = f" -&gt; {self._linked(found, node.returns)}" if node.returns else ""
        if "property" in decorators:
            return _pre(f"{node.name}: {self._linked(found, node.returns)}")
        marks = [each for each in decorators if each in ("classmethod", "abstractmethod")]
        before = "".join(f"@{each}\n" for each in marks)
        start = f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}def {node.name}"
        taken = len(start) + len(_plain(returns))
        return _pre(f"{before}{start}{self._arguments(found, node.args, taken)}{returns}")

    def _arguments(self, found: Definition, given: ast.arguments, taken: int) -> str:
        """Return the parameters, one a line where they are too long for one line."""
        parts = list(self._parameters(found, given))
        line = ", ".join(parts)
        if taken + len(_plain(line)) <= _WIDTH:
            return f"({line})"
        return "(\n" + "".join(f"    {part},\n" for part in parts) + ")"

    def _parameters(self, found: Definition, given: ast.arguments) -> Iterator[str]:
        plain = [*given.posonlyargs, *given.args]
        missing = len(plain) - len(given.defaults)
        defaults = [None] * missing + list(given.defaults)
        for at, (each, default) in enumerate(zip(plain, defaults, strict=True)):
            if at or each.arg not in ("self", "cls"):
                yield self._parameter(found, each, default)
            if at + 1 == len(given.posonlyargs):
                yield "/"
        if given.vararg:
            yield "*" + self._parameter(found, given.vararg, None)
        elif given.kwonlyargs:
            yield "*"
        for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            yield self._parameter(found, each, value)
        if given.kwarg:
            yield "**" + self._parameter(found, given.kwarg, None)

    def _parameter(self, found: Definition, each: ast.arg, default: ast.expr | None) -> str:
        kind = f": {self._linked(found, each.annotation)}" if each.annotation else ""
        equals = " = " if kind else "="
        return each.arg + kind + (equals + html.escape(ast.unparse(default)) if default else "")

    def _attributes(self, found: Definition) -> str:
        rows = list(self._rows(found))
        if not rows:
            return ""
        fields = ("field", "type", "default", "meaning")
        heads = ("member", "value") if found.is_enumeration else fields
        used = [at for at in range(len(heads)) if any(row[at] for row in rows)]
        head = "".join(f"<th>{heads[at]}</th>" for at in used)
        lines = ("".join(f'<td class="{heads[at]}">{row[at]}</td>' for at in used) for row in rows)
        body = "".join(f"<tr>{line}</tr>\n" for line in lines)
        return f'<table class="fields">\n<tr>{head}</tr>\n{body}</table>'

    def _rows(self, found: Definition) -> Iterator[tuple[str, ...]]:
        for base in found.bases:
            if base.origin not in self._links:
                yield from self._rows(base)
        for each in found.attributes:
            name, value = f"<code>{each.name}</code>", _code(each.default)
            if found.is_enumeration:
                yield name, value
                continue
            kind, text = _unpacked(each)
            yield name, _typed(self._linked(found, kind)), _code(_default(each)), _inline(text)

    def _linked(self, found: Definition, node: ast.expr | None) -> str:
        """Return an annotation in which the names that have an entry are links."""

        def link(match: re.Match[str]) -> str:
            origin = self._names.origin(found.origin.module, match[0])
            target = self._links.get(origin) if origin else None
            return f'<a href="{target}">{match[0]}</a>' if target else match[0]

        return _NAME.sub(link, html.escape(ast.unparse(node), quote=False)) if node else ""


def _is_fixture(method: Function) -> bool:
    return any(ast.unparse(each).startswith("pytest.fixture") for each in method.decorator_list)


def _is_check(method: Function) -> bool:
    return method.name.startswith("test_")


def _inherited(found: Definition, method: str) -> str:
    """Return the docstring of the method that this one overrides."""
    for base in found.bases:
        own = next((each for each in base.methods if each.name == method), None)
        text = ast.get_docstring(own) if own else ""
        if text := text or _inherited(base, method):
            return text
    return ""


def _unpacked(each: Attribute) -> tuple[ast.expr | None, str]:
    """Return the type and the text of a field; an Annotated one has both in its annotation."""
    kind = each.annotation
    if not (isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated"):
        return kind, each.text
    inside, meta = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else (kind.slice, None)
    facts = {word.arg: word.value for word in meta.keywords} if isinstance(meta, ast.Call) else {}
    bounds = [f"{text} {ast.unparse(facts[key])}" for key, text in _BOUNDS.items() if key in facts]
    text = ast.literal_eval(facts["description"]) if "description" in facts else each.text
    return inside, ", ".join(filter(None, (text, *bounds)))


def _default(each: Attribute) -> ast.expr | None:
    call = each.default
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "msgspec.field":
        return next((word.value for word in call.keywords if word.arg == "default"), None)
    return call


def _code(node: ast.expr | None) -> str:
    return f"<code>{html.escape(ast.unparse(node))}</code>" if node else ""


def _typed(text: str) -> str:
    return f"<code>{text}</code>" if text else ""


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", text))


def _pre(text: str) -> str:
    return f'<pre class="signature"><code>{text}</code></pre>'
