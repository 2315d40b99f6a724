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
    entries, exits = report["tick_to_order_ms"], report["stop_to_order_ms"]
    assert entries["count"] == exits["count"] > 0
    # A refused exit is retried.
    assert report["stop_in_lane_us"]["count"] >= exits["count"]
    assert all(count > 0 for count in report["refused"].values())
    for stats in (entries, exits, report["stop_in_lane_us"]):
        assert 0 < stats["p50"] <= stats["p99"] <= stats["max"]
    assert 0 < report["commit_ms"]["p50"] <= report["commit_ms"]["p99"]
    is_missed = exits["p99"] > 9 * report["commit_ms"]["p50"]
    assert is_missed == any("stop to order p99" in text for text in report["missed"])
