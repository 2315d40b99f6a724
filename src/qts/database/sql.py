"""Named SQL statements: a package's `queries.sql`, read once."""

from __future__ import annotations

import re
from importlib.resources import files

_MARKER = re.compile(r"^-- name: (.*)$\n?", re.MULTILINE)


class Queries:
    """SQL statements of one file, one attribute per name."""

    def __init__(self, texts: dict[str, str], source: str) -> None:
        self._texts = texts
        self._source = source

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"{self._source} has no query named {name!r}") from None

    def __dir__(self) -> list[str]:
        return sorted(self._texts)


def load_queries(package: str) -> Queries:
    """Read `queries.sql` of a package, where `-- name: claim_events` starts a statement.

    Raise ValueError for a statement without a name, a name without a statement, and a name that is
    not an identifier or not unique.
    """
    source = f"{package.replace('.', '/')}/queries.sql"
    return parse_queries(files(package).joinpath("queries.sql").read_text("utf-8"), source)


def parse_queries(text: str, source: str) -> Queries:
    first, *rest = _MARKER.split(text)
    if _has_statement(first):
        raise ValueError(f"{source}: a statement has no name")
    texts: dict[str, str] = {}
    for name, statement in zip(rest[::2], rest[1::2], strict=True):
        if not name.isidentifier() or name in texts:
            raise ValueError(f"{source}: query name {name!r} is not an identifier or not unique")
        if not _has_statement(statement):
            raise ValueError(f"{source}: query {name!r} has no statement")
        texts[name] = statement.rstrip() + "\n"
    return Queries(texts, source)


def _has_statement(text: str) -> bool:
    return any(line and not line.startswith("--") for line in map(str.strip, text.splitlines()))
