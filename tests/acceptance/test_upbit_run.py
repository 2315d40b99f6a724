"""A run on Upbit: the paper broker or Upbit takes the orders; holdings and positions agree."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from qts.pipeline import replay_decisions
from qts.pipeline.decision_journal import GateEntry, read_journal
from tests.acceptance.runs import Run, holdings_and_positions, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

FILLS = "SELECT count(*) FROM fill"
UPBIT = {
    "QTS_FEED__VENUE": "upbit",
    "QTS_PIPELINE__STRATEGIES": "tests.acceptance.turner:Turner",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "home"


def has_filled(run: Run, expected: int) -> bool:
    return int(run.query(FILLS)[0][0]) >= expected


def simulator_says(home: Path) -> dict[str, Any]:
    log = (home / "log" / "simulator.log").read_text()
    (url,) = re.findall(r"upbit simulator +(http://127\.0\.0\.1:\d+)", log)
    with urllib.request.urlopen(f"{url}/_control/stats", timeout=30) as reply:  # noqa: S310 - ours
        stats: dict[str, Any] = json.load(reply)
    return stats


@pytest.mark.soak  # test_two_venues.py trades there as well
def test_a_run_on_upbit_trades_on_paper_and_its_books_are_the_venues(home: Path) -> None:
    journals = home.parent / "journals"
    with running(home, **UPBIT, QTS_PIPELINE__JOURNAL=str(journals)) as run:
        run.until("Ready")
        assert until(lambda: has_filled(run, 6), seconds=60)
        venue, _ = holdings_and_positions(run)
        assert all(symbol.startswith("KRW-") for symbol in venue)
        assert simulator_says(home)["orders"]["placed"] == 0  # on paper no order gets there
        run.ends_well(signal.SIGTERM)
        summary = run.summary
    assert (summary["verdict"], summary["mode"], summary["broker"]) == ("OK", "paper", "paper")
    assert summary["books_agree"] is True
    assert summary["ticks"] > 100
    assert summary["fills"] >= 6
    (journal,) = journals.iterdir()
    assert replay_decisions(journal).differences == []
    answers = [entry.codes for entry in read_journal(journal) if isinstance(entry, GateEntry)]
    assert answers.count(()) >= summary["intents"] > 0


def test_upbit_itself_takes_the_orders_where_it_is_the_broker(home: Path) -> None:
    at_upbit = {**UPBIT, "QTS_BROKERS__BROKER": "upbit"}
    with running(home, **at_upbit) as run:
        run.until("Ready")
        assert until(lambda: has_filled(run, 6), seconds=60)
        assert simulator_says(home)["orders"]["placed"] > 0
        run.ends_well(signal.SIGTERM)
        summary = run.summary
    assert (summary["verdict"], summary["mode"], summary["broker"]) == ("OK", "paper", "upbit")
    assert summary["books_agree"] is True
    assert summary["attempts"].get("UNKNOWN", 0) == 0
