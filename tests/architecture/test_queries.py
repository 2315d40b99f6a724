"""Named SQL queries: each is used, and each used name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qts
from qts.database import load_queries
from qts.database.sql import parse_queries

SOURCE = Path(qts.__file__).parent
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/queries.sql"))


def used_names(folder: Path) -> set[str]:
    texts = [path.read_text("utf-8") for path in folder.rglob("*.py")]
    return {name for text in texts for name in re.findall(r"\bSQL\.(\w+)", text)}


def test_both_packages_are_checked() -> None:
    assert PACKAGES == ["orders", "outbox"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_query_is_used_and_every_used_name_exists(package: str) -> None:
    assert set(dir(load_queries(f"qts.{package}"))) == used_names(SOURCE / package)


def test_an_unknown_name_is_reported_with_its_file() -> None:
    with pytest.raises(AttributeError, match=r"qts/outbox/queries\.sql has no query named 'nope'"):
        _ = load_queries("qts.outbox").nope


def test_statements_keep_their_text() -> None:
    queries = parse_queries(
        "-- about\n\n-- name: one\n-- $1 id\nSELECT 1\n\n-- name: two\nSELECT 2", "x"
    )
    assert (queries.one, queries.two) == ("-- $1 id\nSELECT 1\n", "SELECT 2\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SELECT 1\n-- name: one\nSELECT 1", "has no name"),
        ("-- name: one\nSELECT 1\n-- name: one\nSELECT 2", "'one' is not an identifier or not un"),
        ("-- name: two words\nSELECT 1", "'two words' is not an identifier"),
        ("-- name: one\n-- name: two\nSELECT 1", "'one' has no statement"),
    ],
)
def test_a_malformed_file_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_queries(text, "x.sql")
