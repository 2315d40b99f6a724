"""`qts dev bench feed`: both ways record the same, and permits are counted right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyrate_limiter
import pytest

from benchmarks import feed
from benchmarks.rate_limiters import PER_SECOND, try_pyrate, worst_window
from qts.feed import read_records


def test_both_ways_record_the_same(tmp_path: Path) -> None:
    replies = feed.simulated_replies(symbols=60, scans=2)
    assert feed.ours(replies, tmp_path / "ours") > 0
    assert feed.plain(replies, tmp_path / "plain.jsonl") > 0
    ours, plain = (
        list(read_records(tmp_path / "ours")),
        list(read_records(tmp_path / "plain.jsonl")),
    )
    assert len(ours) == len(plain) == 120
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.number == theirs.number
        assert mine.snapshot.context == theirs.snapshot.context
        assert mine.snapshot.observation.inputs == theirs.snapshot.observation.inputs


def test_replies_are_those_of_moving_symbols() -> None:
    first, second = feed.simulated_replies(symbols=30, scans=2)
    before, after = json.loads(first)["output"], json.loads(second)["output"]
    assert len(before) == 30
    assert any(a["acml_vol"] != b["acml_vol"] for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("moments", "most"),
    [([0], 1), ([0, 9, 10], 2), ([0, 1, 9, 10, 11], 3), ([0, 5, 10, 15, 20], 2)],
)
def test_the_worst_window_slides(moments: list[int], most: int) -> None:
    assert worst_window(moments, span_ns=10) == most


@pytest.mark.parametrize("logged", [False, True])
def test_the_stepped_clock_leaves_the_peer_capacity(tmp_path: Path, logged: bool) -> None:
    path = tmp_path / "grants" if logged else None
    assert try_pyrate(pyrate_limiter, path, PER_SECOND + 10) > 0


@pytest.mark.soak
def test_quick_run_has_a_row_for_each_claim_and_the_limit_is_never_exceeded() -> None:
    lines: list[str] = []
    found: dict[str, Any] = feed.run(quick=True, progress=lines.append).to_json()
    names = [row["name"] for row in found["rows"]]
    assert names[0] == "bytes of a reply to a line on disk"
    assert "rate limiter, without waiting" in names
    assert "rate limiter, kept across kill -9" in names
    worst = [row for row in found["rows"] if row["name"] == "worst second at 20/s"]
    assert worst
    assert all(row["ours"] == 20 for row in worst)
    assert len(lines) == 4
