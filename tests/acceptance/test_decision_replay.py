"""The decisions of a run, made again from its journal, are the very same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from qts.pipeline import replay_decisions
from qts.pipeline.decision_journal import RestartEntry, read_journal
from tests.acceptance.runs import COMPILED, Run, running
from tests.embedded.clients import alive, until

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


def has_ordered(run: Run, expected: int) -> bool:
    return int(run.query(INTENTS)[0][0]) >= expected


def processes_of(run: Run) -> list[int]:
    """Those of its strategies."""
    place = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
    found = [int(pid) for pid in place.read_text().split()]
    return [pid for pid in found if "process_main" in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_killed_run_is_retraced_to_its_last_entry(tmp_path: Path) -> None:
    """Two strategies in their lane, two apart; the process of one is killed on the way."""
    home, journals = tmp_path.resolve() / "home", tmp_path / "journals"
    settings = {
        "QTS_PIPELINE__STRATEGIES": STRATEGIES,
        "QTS_PIPELINE__ISOLATED_STRATEGIES": "turner,rsi_scalper",
        "QTS_PIPELINE__JOURNAL": str(journals),
    }
    with running(home, **COMPILED, **settings) as run:
        run.until("Ready")
        assert until(lambda: has_ordered(run, 6), seconds=60)
        assert until(lambda: len(processes_of(run)) == 2, seconds=60)
        before = processes_of(run)
        os.kill(before[0], signal.SIGKILL)
        assert until(lambda: len(set(processes_of(run)) - {before[0]}) == 2, seconds=60)
        assert until(lambda: has_ordered(run, 18), seconds=60)
        after = processes_of(run)
        run.end(signal.SIGKILL)
    assert until(lambda: not any(map(alive, after)))
    assert before[0] not in after
    (journal,) = journals.iterdir()
    found = replay_decisions(journal)
    assert found.differences == []
    assert RestartEntry("turner") in read_journal(journal)
    assert found.calls > 500
    assert found.signals >= 12
    assert found.decisions >= 12
    assert found.answers >= 12
