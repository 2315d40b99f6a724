"""The example strategies in `qts run` on paper, a minute each at both simulated venues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qts.domain import Secret
from tests.acceptance.runs import Run, running

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples/strategies"
CLASSES = {
    "volatility_breakout": "VolatilityBreakout",
    "daily_averages": "DailyAverages",
    "pairs": "Pairs",
    "rebalancing": "Rebalancing",
    "market_maker": "MarketMaker",
}
PARAMETERS = {"volatility_breakout": "{ k = 0.0 }"}  # it then buys above the open
SYMBOLS = {"kis": ["005930", "000660"], "upbit": ["KRW-BTC", "KRW-ETH"]}
SETTINGS = {
    "QTS_RISK__LIMITS__ORDERS_PER_DAY": "100000",
    "QTS_RISK__LIMITS__ORDERS_PER_MINUTE": "100000",
    "QTS_SIMULATOR__SYMBOLS": "20",
    "QTS_SIMULATOR__SPEED": "5",
}
OPEN = "SELECT order_id, symbol FROM paper_order WHERE state = 'OPEN'"
PENDING = "SELECT id, status FROM order_intent WHERE status = 'CREATED'"
MISTAKES = ("strategy raised", "strategy returned a bad signal", "strategy disabled")


@pytest.mark.parametrize("venue", ["kis", "upbit"])
@pytest.mark.parametrize("name", CLASSES)
async def test_a_minute_on_paper(
    name: str, venue: str, database_url: Secret, tmp_path: Path
) -> None:
    source = f"{EXAMPLES / name}.py:{CLASSES[name]}"
    symbols = SYMBOLS[venue][:1] if name == "market_maker" else SYMBOLS[venue]
    settings = SETTINGS | {
        "QTS_DATABASE__URL": database_url.reveal(),
        "QTS_FEED__VENUE": venue,
        "QTS_STRATEGY": f'[{{ class = "{source}", symbols = {symbols},'
        f" parameters = {PARAMETERS.get(name, '{}')} }}]",
    }
    with running(tmp_path / "home", "--duration", "60s", **settings) as run:
        await asyncio.to_thread(judge, run, name)


def judge(run: Run, name: str) -> None:
    run.until("Ready")
    run.ends_well(within_s=150)
    summary = run.summary
    strategy = summary["strategies"][name]
    orders = f"{strategy['orders']} orders, {strategy['fills']} fills, {summary['ticks']} ticks"
    print(f"{name}: {orders}, refused {strategy['refusals']}, attempts {summary['attempts']}")
    assert (summary["verdict"], summary["mode"]) == ("OK", "paper")
    assert (strategy["state"], strategy["errors"]) == ("running", 0)  # and its warm-up is complete
    assert not [text for text in MISTAKES if text in run.errors]
    assert summary["books_agree"], summary["differences"]
    assert summary["ticks"] > 50
    assert summary["seconds"] >= 60
    assert (run.query(OPEN), run.query(PENDING)) == ([], [])
    if name in ("market_maker", "volatility_breakout"):  # the others decide once a day
        assert strategy["fills"] > 0
