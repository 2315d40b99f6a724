"""`qts dev verify latency`: every figure is of orders that were sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_latency_of_sent_orders_is_reported() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    done = subprocess.run(
        [sys.executable, "-m", "qts", "dev", "verify", "latency", "--for", "2s", "--json", "-"],
        env=clean,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == ("PASS" if done.returncode == 0 else "FAIL")
    assert report["entry_ms"]["count"] == report["exit_ms"]["count"] > 0
    assert report["lane_us"]["count"] >= report["exit_ms"]["count"]  # a refused exit is retried
    assert all(count > 0 for count in report["refused"].values())
    for stats in (report["entry_ms"], report["exit_ms"], report["lane_us"]):
        assert 0 < stats["p50"] <= stats["p99"] <= stats["max"]
