"""Stops of a run that is killed: the next run continues with the same levels."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)

STATE = (
    "SELECT s.symbol, s.opened_at, s.best, s.worst, s.trail, s.armed FROM position_stop s"
    " JOIN position p ON p.broker = s.broker AND p.symbol = s.symbol"
    " AND p.opened_at = s.opened_at WHERE p.quantity <> 0 AND s.armed ORDER BY s.symbol"
)
OUTCOMES = "SELECT count(*), count(*) FILTER (WHERE status NOT IN ('PREPARED', 'SENT', 'UNKNOWN'))"
OUTCOMES += " FROM order_attempt"
# Armed at once, and far from the price: nothing is sold.
SETTINGS = {
    "QTS_FEED__VENUE": "upbit",
    "QTS_PIPELINE__STRATEGIES": "tests.acceptance.keeper:KeeperOfTen",
    "QTS_RISK__STOPS__TRAIL_ARM": "0.0001",
    "QTS_RISK__STOPS__TRAIL": "0.9",
    "QTS_RISK__STOPS__MAE_HALF": "0.9",
    "QTS_RISK__STOPS__MAE_FULL": "0.9",
    "QTS_RISK__STOPS__MAE_ACCOUNT": "0.9",
}


def test_a_killed_run_continues_with_the_same_trailing_stop(tmp_path: Path) -> None:
    home = tmp_path.resolve() / "home"
    with running(home, **SETTINGS) as run:
        run.until("Ready")
        assert until(lambda: bool(states(run)) and is_settled(run), seconds=120)
        run.end(SIGKILL)
    with running(home, "--servers-only") as run:
        run.until("Ready")
        before = states(run)
        run.ends_well(SIGTERM)
    with running(home, **SETTINGS) as run:
        run.until("Ready")
        assert until(lambda: before.keys() <= states(run).keys(), seconds=60)
        run.ends_well(SIGTERM)
        assert run.summary["intents"] == 0  # neither bought again nor sold
    with running(home, "--servers-only") as run:
        run.until("Ready")
        after = states(run)
        run.ends_well(SIGTERM)
    assert before.keys() <= after.keys()
    for symbol, first in before.items():
        second = after[symbol]
        assert second["opened_at"] == first["opened_at"]
        assert second["armed"]
        assert second["best"] >= first["best"]
        assert second["worst"] <= first["worst"]
        assert second["trail"] >= first["trail"]
        if second["best"] == first["best"]:
            assert second["trail"] == first["trail"]


def is_settled(run: Run) -> bool:
    """Return whether all ten orders have an outcome: a kill leaves none to be looked for."""
    (row,) = run.query(OUTCOMES)
    return bool(row[0] == row[1] > 0)


def states(run: Run) -> dict[str, Any]:
    return {row["symbol"]: row for row in run.query(STATE)}
