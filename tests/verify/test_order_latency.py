"""`qts verify trading`: every figure is of orders that really left."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_drill_trades_and_tells_its_spans() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    done = subprocess.run(
        [sys.executable, "-m", "qts", "verify", "trading", "--for", "2s", "--json", "-"],
        env=clean,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == ("PASS" if done.returncode == 0 else "FAIL")
    assert told["entry_ms"]["count"] == told["exit_ms"]["count"] > 0
    assert told["lane_us"]["count"] >= told["exit_ms"]["count"]  # a refused exit is asked for again
    assert all(count > 0 for count in told["refused"].values())
    for spans in (told["entry_ms"], told["exit_ms"], told["lane_us"]):
        assert 0 < spans["p50"] <= spans["p99"] <= spans["max"]
