"""A stop order over two kills: it waits, is triggered once, and is one order of the venue."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from qts.simulators import MarketConfig
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import simulated_account
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)

MARKET = MarketConfig(symbols=3, surges_per_hour=0.0, suspended=0, always_open=True)
WAITING = "SELECT id FROM stop_order WHERE triggered_at IS NULL"


async def test_a_stop_order_survives_kills_and_is_one_order_of_the_venue(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with simulated_account("upbit", MARKET) as venue:
        settings = venue.settings(tmp_path)
        settings |= {"QTS_PIPELINE__STRATEGIES": "tests.acceptance.stopper:Stopper"}
        with running(home, **settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            assert await asyncio.to_thread(until, lambda: run.query(WAITING) != [], 60)
            await asyncio.to_thread(run.end, SIGKILL)
        with running(home, **settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            (order,) = await asyncio.to_thread(listed, run, settings)
            assert (order["status"], order["strategy_key"]) == ("WAITING", "stopper")
            assert venue.orders() == {}
            market = venue.simulator.market
            market.inject_surge(market.index["KRW-BTC"], 3.0)
            async with asyncio.timeout(60):
                while not venue.orders():  # noqa: ASYNC110 - of another process: no signal
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(run.end, SIGKILL)  # whatever is stored of it by now
        with running(home, **settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            assert await asyncio.to_thread(until, lambda: run.query(WAITING) == [], 60)
            await asyncio.to_thread(run.ends_well, SIGTERM)
            assert run.summary["books_agree"], run.summary["differences"]
            assert run.summary["ticks"] > 0
        (bought,) = venue.orders().values()
        assert (bought.symbol, bought.side) == ("KRW-BTC", "BUY")
        assert venue.holdings() == {"KRW-BTC": bought.filled}
        assert bought.filled > 0
        assert Decimal(order["trigger"]) > 0


def listed(run: Run, settings: dict[str, str]) -> Any:
    """Return what `qts orders list` says of the home."""
    done = subprocess.run(
        [sys.executable, "-m", "qts", "orders", "list", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **settings, "QTS_HOME": str(run.home)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["orders"]
