"""A disk that fails during writes: nothing more is accepted, and the error names the cause.

What a torn end, a flipped bit and a full disk do stands beside each file's own tests
(tests/router/test_journal.py, tests/venues/test_rate_limiter.py, tests/feed/test_recorder.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
LIMITER = """
import json, sys, time
from pathlib import Path
from qts.domain import OperationError, SystemClock
from qts.venues import RateLimitConfig, RateLimiter, RequestPriority, UsageLog
from tests.faults.broken_disk import break_disk

if sys.argv[2] == "before":
    break_disk()
granted, refused, clock = 0, "", SystemClock()
try:
    limits = RateLimitConfig(per_second=20, per_minute=1000)
    limiter = RateLimiter(limits, clock, UsageLog(Path(sys.argv[1]), clock))
    if sys.argv[2] == "after":  # while no thread runs yet: each keeps the filter it began with
        break_disk()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if limiter.try_acquire(RequestPriority.ORDER):
            limiter.release()
            granted += 1
        time.sleep(0.01)
except OperationError as error:
    refused = str(error)
print(json.dumps({"granted": granted, "refused": refused}))
"""
JOURNAL = """
import sys
from pathlib import Path
import msgspec
from qts.router import JournalConfig, Options, Router
from tests.faults.broken_disk import break_disk
from tests.router.support import plan_for, scenario

break_disk()
what = scenario(rate=1e5, seconds=30)
journal = JournalConfig(Path(sys.argv[1]), fsync=sys.argv[2])
report = Router(what, plan_for(what, "threads"), options=Options(journal=journal)).run()
print(msgspec.json.encode(report.to_json()).decode())
"""


def run(program: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = msgspec.json.decode(done.stdout)
    return report


@pytest.mark.parametrize("when", ["before", "after"])
def test_requests_that_cannot_be_kept_on_disk_are_not_granted(tmp_path: Path, when: str) -> None:
    report = run(LIMITER, str(tmp_path / "key.usage"), when)
    assert report["refused"] == "cannot write the usage log of the rate limiter: Input/output error"
    assert report["granted"] == 0 if when == "before" else 0 < report["granted"] <= 200


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_router_whose_journal_cannot_be_kept_fails_by_name(tmp_path: Path, fsync: str) -> None:
    path = tmp_path / "j"
    report = run(JOURNAL, str(path), fsync)
    assert report["verdict"] == "FAILED"
    assert report["failures"] == [f"journal failed: {path}: Input/output error"]
    assert report["produced"] == report["delivered"] + report["undelivered"]
    assert report["produced"] < 30 * 100_000  # it stops early
