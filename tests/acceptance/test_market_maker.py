"""A market maker on paper: at most its two orders are open, by the venue's own record.

It quotes, moves its quotes, is killed, sees its orders again after the restart, and leaves none
open when it is stopped.
"""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from qts.pipeline import replay_decisions
from qts.pipeline.decision_journal import StrategyCallEntry, read_journal
from qts.strategies import Replace
from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)

# Counts, at each order that the venue takes, what it then has open of the market maker.
JUDGE = (
    "CREATE TABLE judge (bids bigint, asks bigint)",
    """
    CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO judge
        SELECT count(*) FILTER (WHERE side = 'BUY'), count(*) FILTER (WHERE side = 'SELL')
          FROM paper_order WHERE state = 'OPEN' AND type = 'LIMIT';
        RETURN NULL;
    END $$
    """,
    "CREATE TRIGGER judge AFTER INSERT ON paper_order FOR EACH ROW EXECUTE FUNCTION judge()",
)
WORST = "SELECT max(bids), max(asks), count(*) FROM judge"
OPEN = "SELECT order_id FROM paper_order WHERE state = 'OPEN'"
UNKNOWN = "SELECT id FROM order_attempt WHERE status = 'UNKNOWN'"
PENDING = "SELECT id FROM order_intent WHERE status = 'CREATED'"
EXAMPLES = Path(__file__).parents[2] / "examples/strategies"
SETTINGS = {
    "QTS_PIPELINE__STRATEGIES": f"{EXAMPLES / 'market_maker.py'}:MarketMaker",
    "QTS_RISK__LIMITS__ORDERS_PER_DAY": "100000",
    "QTS_RISK__LIMITS__ORDERS_PER_MINUTE": "100000",
    "QTS_SIMULATOR__SYMBOLS": "3",
    "QTS_SIMULATOR__SPEED": "5",
}


def orders_seen(run: Run) -> int:
    return int(run.query("SELECT count(*) FROM judge")[0][0])


def test_a_market_maker_never_has_more_than_its_two_orders_open(tmp_path: Path) -> None:
    home, journals = tmp_path.resolve() / "home", tmp_path / "journals"
    settings = {**SETTINGS, "QTS_PIPELINE__JOURNAL": str(journals)}
    with running(home, **settings) as run:
        run.until("Ready")
        for statement in JUDGE:
            run.query(statement)
        assert until(lambda: orders_seen(run) >= 12, seconds=60)
        assert until(lambda: bool(run.query(OPEN)), seconds=60)
        run.end(SIGKILL)
    with running(home, QTS_PIPELINE__ISOLATED_STRATEGIES="*", **settings) as run:
        run.until("Ready")
        before = orders_seen(run)
        assert until(lambda: orders_seen(run) >= before + 8, seconds=60)
        assert until(lambda: not run.query(UNKNOWN), seconds=60)  # what the kill left
        run.ends_well(SIGTERM)
        assert run.summary["strategies"]["market_maker"]["errors"] == 0
        assert run.summary["books_agree"] is True
    with running(home, "--servers-only") as run:
        run.until("Ready")
        (worst,) = run.query(WORST)
        left, pending = run.query(OPEN), run.query(PENDING)
        run.ends_well(SIGTERM)
    bids, asks, orders = worst
    assert (bids, asks) == (1, 1)
    assert orders >= 20
    assert (left, pending) == ([], [])
    for journal in journals.iterdir():
        assert replay_decisions(journal).differences == []
        calls = [each for each in read_journal(journal) if isinstance(each, StrategyCallEntry)]
        returned = [each for call in calls for each in call.on_tick]
        assert any(isinstance(each, Replace) for each in returned)
