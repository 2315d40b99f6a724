"""`qts verify trading`: every figure is of orders that really left."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def test_drill_trades_and_tells_its_spans() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    done = subprocess.run(
        [sys.executable, "-m", "qts", "verify", "trading", "--for", "2s", "--json", "-"],
        env=clean,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == ("PASS" if done.returncode == 0 else "FAIL")
    assert told["entry_ms"]["count"] == told["exit_ms"]["count"] == told["lane_us"]["count"] > 0
    for spans in (told["entry_ms"], told["exit_ms"], told["lane_us"]):
        assert 0 < spans["p50"] <= spans["p99"] <= spans["max"]
