"""docs/risk-codes.md says what the code does, code by code."""

from __future__ import annotations

from pathlib import Path

from qts.risk import CODES, REASONS

DOCS = Path(__file__).parents[2] / "docs" / "risk-codes.md"


def test_every_code_stands_in_the_docs_and_no_other() -> None:
    rows = [line for line in DOCS.read_text("utf-8").splitlines() if line.startswith("| ")]
    told = [f"| {code} | {text} |" for code, text in REASONS.items()]
    told += [
        f"| {c.code} | {c.effect}{', transient' if c.transient else ''} | {c.text} |"
        for c in CODES.values()
    ]
    assert [row for row in rows if not row.startswith("| code")] == told
