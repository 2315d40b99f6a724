"""`qts dev bench optimise`: the same study everywhere, and what a kill costs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import optimise


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_quick_run_has_one_digest_and_repeats_one_trial_after_a_kill() -> None:
    found: dict[str, Any] = optimise.run(quick=True, progress=lambda _line: None).to_json()
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["2 processes"]["peer_name"] == "1 process"
    assert rows["studies with another digest"]["peer"] == 5
    for name in (
        "studies with another digest",
        "trials run again after kill -9 of a process",
        "trials run again after kill -9 of a node",
    ):
        assert rows[name]["holds"], rows[name]
