"""A run whose strategy trades on bars, in its lane and in a process; its journal replays."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from qts.pipeline import replay_decisions
from qts.pipeline.decision_journal import StrategyCallEntry, read_journal
from tests.acceptance.runs import running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

FILLS = "SELECT count(*) FROM fill"


@pytest.mark.parametrize(
    ("venue", "isolated"),
    [pytest.param("kis", "", marks=pytest.mark.soak), ("upbit", "bar_trader")],
)
def test_a_strategy_trades_on_bars(venue: str, isolated: str, tmp_path: Path) -> None:
    home, journals = tmp_path.resolve() / "home", tmp_path / "journals"
    settings = {
        "QTS_FEED__VENUE": venue,
        "QTS_PIPELINE__STRATEGIES": "tests.acceptance.bar_trader:BarTrader",
        "QTS_PIPELINE__JOURNAL": str(journals),
        "QTS_SIMULATOR__SYMBOLS": "30",
    }
    if isolated:
        settings["QTS_PIPELINE__ISOLATED_STRATEGIES"] = isolated
    with running(home, **settings) as run:
        run.until("Ready")
        assert until(lambda: int(run.query(FILLS)[0][0]) >= 4, seconds=60)
        run.ends_well(signal.SIGTERM)
        summary = run.summary
    assert summary["bars"] >= 10
    assert summary["router"]["produced"] == summary["router"]["delivered"] >= summary["bars"]
    assert "delivered to strategies" in run.output
    (journal,) = journals.iterdir()
    replayed = replay_decisions(journal)
    assert replayed.differences == []
    assert replayed.signals >= 4
    calls = [each for each in read_journal(journal) if isinstance(each, StrategyCallEntry)]
    received = [each.bar for call in calls for each in call.bars]
    assert len(received) >= 10
    assert all(bar.low <= min(bar.open, bar.close) for bar in received)
