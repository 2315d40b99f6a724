"""Brackets in `qts run`: the stops close at the levels of an entry, also after `kill -9`."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)

EXITS = "SELECT id FROM order_intent WHERE intent_type IN ('EXIT_TP', 'EXIT_STOPLOSS')"
HELD = "SELECT symbol FROM position WHERE quantity <> 0"
ENTRIES = "SELECT count(*) FROM order_intent WHERE strategy_key = 'bracket'"
UNKNOWN = "SELECT id FROM order_attempt WHERE status = 'UNKNOWN'"
# The stops of the settings are far away: what is closed is closed by a bracket.
SETTINGS = {
    "QTS_PIPELINE__STRATEGIES": "tests.acceptance.bracket:Bracket",
    "QTS_RISK__STOPS__TRAIL_ARM": "0.9",
    "QTS_RISK__STOPS__MAE_HALF": "0.9",
    "QTS_RISK__STOPS__MAE_FULL": "0.9",
    "QTS_RISK__STOPS__MAE_ACCOUNT": "0.9",
    "QTS_SIMULATOR__SYMBOLS": "30",
}


def count(run: Run, query: str) -> int:
    return len(run.query(query))


@pytest.mark.soak
def test_brackets_close_positions_of_this_run_and_of_a_killed_one(tmp_path: Path) -> None:
    home = tmp_path.resolve() / "home"
    with running(home, **SETTINGS) as run:
        run.until("Ready")
        assert until(lambda: count(run, EXITS) >= 3 and count(run, HELD) > 0, seconds=90)
        run.end(SIGKILL)
    # No entry is left for the day: what is closed from here on was entered before.
    with running(home, **SETTINGS, QTS_RISK__LIMITS__ORDERS_PER_DAY="1") as run:
        run.until("Ready")
        before, entries = count(run, EXITS), run.query(ENTRIES)[0][0]
        assert until(lambda: count(run, EXITS) > before, seconds=90)
        assert until(lambda: not run.query(UNKNOWN), seconds=60)
        assert run.query(ENTRIES)[0][0] == entries
        run.ends_well(SIGTERM)
