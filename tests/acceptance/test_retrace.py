"""The decisions of a run, made again from its journal, are the very same."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from qts.pipeline import retrace
from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

INTENTS = "SELECT count(*) FROM order_intent"
STRATEGIES = ",".join(
    (
        "tests.acceptance.turner:Turner",
        "qts.strategies:SurgeBreakout",
        "qts.strategies:MovingAverageSwing",
        "qts.strategies:RsiScalper",
    )
)


def has_ordered(run: Run, wanted: int) -> bool:
    return int(run.ask(INTENTS)[0][0]) >= wanted


def test_a_killed_run_is_retraced_to_its_last_entry(tmp_path: Path) -> None:
    home, journals = tmp_path.resolve() / "home", tmp_path / "journals"
    settings = {"QTS_PIPELINE__STRATEGIES": STRATEGIES, "QTS_PIPELINE__JOURNAL": str(journals)}
    with running(home, **settings) as run:
        run.until("Ready")
        assert until(lambda: has_ordered(run, 12), seconds=60)
        run.end(signal.SIGKILL)
    (journal,) = journals.iterdir()
    found = retrace(journal)
    assert found.differences == []
    assert found.calls > 500
    assert found.signals >= 12
    assert found.decisions >= 12
    assert found.answers >= 12
