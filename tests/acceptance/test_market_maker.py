"""A market maker: at most its two orders are open, by the venue's own record.

It quotes, moves its quotes, is killed, sees its orders again after the restart, and leaves none
open when it is stopped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from qts.pipeline import replay_decisions
from qts.pipeline.decision_journal import StrategyCallEntry, read_journal
from qts.simulators import MarketConfig
from qts.simulators.matching import SimulatedFill, SimulatedOrder
from qts.strategies import Replace
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account
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


class OpenOrders:
    """Counts, at each order that a simulator takes, what it then has open on each side."""

    def __init__(self, venue: SimulatedAccount) -> None:
        self._engine = venue.simulator.orders.engine
        self._submit = self._engine.submit
        self._engine.submit = self._counted
        self.worst: Counter[str] = Counter()
        self.taken = 0

    def _counted(self, order: SimulatedOrder) -> list[SimulatedFill]:
        fills: list[SimulatedFill] = self._submit(order)
        self.worst |= Counter(each.side for each in self.now)
        self.taken += 1
        return fills

    @property
    def now(self) -> list[SimulatedOrder]:
        found: list[SimulatedOrder] = self._engine.open_orders
        return found


@pytest.mark.soak
@pytest.mark.parametrize(("name", "symbol"), [("kis", "005930"), ("upbit", "KRW-BTC")])
async def test_a_minute_of_quotes_at_a_simulated_venue(
    name: str, symbol: str, tmp_path: Path
) -> None:
    """A minute, a stop; a kill with orders open, a restart, a stop."""
    market = MarketConfig(symbols=3, surges_per_hour=0.0, suspended=0, always_open=True)
    table = f'class = "{EXAMPLES}/market_maker.py:MarketMaker", symbols = ["{symbol}"]'
    home = tmp_path / "home"
    async with simulated_account(name, market) as venue:
        orders = OpenOrders(venue)
        settings = SETTINGS | venue.settings(tmp_path) | {"QTS_STRATEGY": f"[{{ {table} }}]"}
        del settings["QTS_PIPELINE__STRATEGIES"]
        with running(home, "--duration", "60s", **settings) as run:
            await asyncio.to_thread(run.ends_well, within_s=150)
        in_a_minute = orders.taken
        assert in_a_minute >= 10
        assert orders.now == []
        with running(home, **settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            await wait_until(lambda: orders.taken >= in_a_minute + 6 and bool(orders.now))
            await asyncio.to_thread(run.end, SIGKILL)
        left = len(orders.now)
        with running(home, **settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            before = orders.taken
            await wait_until(lambda: orders.taken >= before + 6)
            await asyncio.to_thread(run.ends_well, SIGTERM)
            summary = run.summary
        print(f"{name}: {in_a_minute} orders in a minute, {left} open at the kill, {orders.worst}")
        assert summary["books_agree"], summary["differences"]
        assert orders.now == []
        assert orders.worst == Counter(buy=1, sell=1)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():  # noqa: ASYNC110 - of another process: there is no signal
            await asyncio.sleep(0.05)
