"""The state of a strategy in `qts run`: restored after `kill -9`, never behind its orders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)

NUMBERS = "SELECT s.reason::int FROM signal s WHERE s.strategy_key = 'tally' ORDER BY s.id"
SETTINGS = {
    "QTS_PIPELINE__STRATEGIES": "tests.acceptance.tally:Tally",
    "QTS_RISK__LIMITS__ORDERS_PER_DAY": "100000",
    "QTS_RISK__LIMITS__ORDERS_PER_MINUTE": "100000",
    "QTS_RISK__LIMITS__MAX_OPEN_SYMBOLS": "100",
    "QTS_SIMULATOR__SYMBOLS": "3",
    "QTS_SIMULATOR__SPEED": "5",
}


def numbers(run: Run) -> list[int]:
    return [row[0] for row in run.query(NUMBERS)]


def qts(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    return subprocess.run(
        [sys.executable, "-m", "qts", "ops", "state", *arguments],
        capture_output=True,
        text=True,
        env={**clean, "QTS_HOME": str(home)},
        timeout=60,
    )


def stored(home: Path) -> dict[str, Any]:
    done = qts(home, "list", "--json")
    assert done.returncode == 0, done.stderr
    return {each["strategy_key"]: each["state"] for each in json.loads(done.stdout)["states"]}


def test_a_killed_run_continues_with_the_state_behind_its_orders(tmp_path: Path) -> None:
    home = tmp_path.resolve() / "home"
    with running(home, **SETTINGS) as run:
        run.until("Ready")
        assert until(lambda: len(numbers(run)) >= 5, seconds=60)
        refused = qts(home, "clear", "tally")
        assert (refused.returncode, "stop it" in refused.stderr) == (2, True)
        run.end(SIGKILL)
    with running(home, "--servers-only") as run:
        run.until("Ready")
        before, state = numbers(run), stored(home)["tally"]["signals"]
        run.ends_well(SIGTERM)
    assert state >= max(before)
    with running(home, **SETTINGS) as run:
        run.until("Ready")
        assert until(lambda: len(numbers(run)) > len(before), seconds=60)
        run.ends_well(SIGTERM)
    assert qts(home, "clear", "taly").stderr.count("did you mean tally?") == 1
    with running(home, "--servers-only") as run:
        run.until("Ready")
        after = numbers(run)
        assert stored(home)["tally"]["signals"] >= max(after)
        run.ends_well(SIGTERM)
    assert len(set(after)) == len(after)  # no number was given twice
    assert min(set(after) - set(before)) > state
    assert "removed" in qts(home, "clear", "tally").stdout
    assert stored(home) == {}
