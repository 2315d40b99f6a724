"""`qts positions adopt` beside a running QTS, and a position that is too small to be sold.

The judge is the simulator's own record of orders.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import ROUND_UP, Decimal
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from qts.simulators import MarketConfig
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import COIN, SimulatedAccount, simulated_account

pytestmark = pytest.mark.timeout(300)

MARKET = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0)
FALL = -3.5  # percent: beyond every stop, below the jump that needs a second tick
SECONDS = 4  # of the market after the fall; an exit that is not filled is repeated each second
SMALL = Decimal(5100)  # won; Upbit takes no order below 5,000
LARGE = Decimal(1_000_000)

BASELINE = "SELECT count(*) FROM baseline_holding"
GUARDED = "SELECT symbol FROM position_stop WHERE reference > 0 AND best IS NOT NULL"
PARKED = "SELECT symbol FROM position_stop WHERE dust"
ATTEMPTS = "SELECT count(*) FROM order_attempt WHERE symbol = $1"
CODES = "SELECT code FROM safety_log"


@pytest.mark.soak
async def test_a_running_qts_guards_what_another_process_adopts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with simulated_account("upbit", MARKET) as venue:
        guarded, unguarded, small = venue.simulator.symbols()[2:5]
        quantity = plant(venue, guarded, LARGE)
        plant(venue, unguarded, LARGE)
        plant(venue, small, SMALL)
        settings = venue.settings(tmp_path) | {
            "QTS_HOME": str(home),
            "QTS_PIPELINE__STRATEGIES": "tests.acceptance.keeper:Keeper",
        }
        with running(home, **settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            await until(run, BASELINE, lambda rows: rows[0][0] == 3)
            await qts(settings, "positions", "adopt", unguarded)
            await qts(settings, "positions", "adopt", small, "--stops")
            await qts(settings, "positions", "adopt", guarded, "--stops")
            adopted = time.monotonic()
            await until(run, GUARDED, lambda rows: {row[0] for row in rows} >= {guarded, small})
            took = time.monotonic() - adopted
            for symbol in (guarded, unguarded, small):
                venue.simulator.inject("surge", symbol, {"percent": FALL, "over_s": 1})
            await until(run, PARKED, lambda rows: [row[0] for row in rows] == [small])
            fell = venue.simulator.market.time
            await passed(venue, lambda: sold(venue, guarded) == quantity)
            await passed(venue, lambda: venue.simulator.market.time >= fell + SECONDS)
            (attempts,) = await asyncio.to_thread(run.query, ATTEMPTS, small)
            codes = [row[0] for row in await asyncio.to_thread(run.query, CODES)]
            listed = json.loads(await qts(settings, "positions", "--json"))
            assert await asyncio.to_thread(run.end, SIGTERM) == 0, run.errors[-4000:]
            summary = run.summary
        sales = {symbol: sold(venue, symbol) for symbol in (guarded, unguarded, small)}
    print(f"guarded after {took:.2f} s; {sales}")
    assert sales == {guarded: quantity, unguarded: 0, small: 0}
    assert attempts[0] == 0  # not even tried
    assert codes.count("GR075") == 1
    assert "FS070" not in codes
    notes = {row["symbol"]: row["note"] for row in listed["positions"]}
    assert (notes[unguarded], notes[small]) == ("no stops", "dust, too small to sell")
    assert (summary["dust"], summary["books_agree"]) == ([small], True), summary


def plant(venue: SimulatedAccount, symbol: str, value: Decimal) -> Decimal:
    """Put a holding into the account at today's price; return its quantity."""
    market = venue.simulator.market
    index = market.index[symbol]
    price = Decimal(market.book(index).bids[0].price) / COIN
    quantity = (value / price).quantize(1 / COIN, ROUND_UP)
    holding = venue.account.holding(index)
    holding.quantity = int(quantity * COIN)
    holding.cost = int(quantity * price * COIN)
    return quantity


def sold(venue: SimulatedAccount, symbol: str) -> Decimal:
    orders = venue.orders().values()
    return sum((each.filled for each in orders if each.symbol == symbol), Decimal(0))


async def qts(settings: dict[str, str], *words: str) -> str:
    """Run a command in another process; return what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "qts", *words],
        env=clean | settings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def until(run: Run, query: str, holds: Callable[[list[Any]], bool]) -> None:
    """Wait for what another process writes: there is no signal."""
    async with asyncio.timeout(60):
        while True:
            if holds(await asyncio.to_thread(run.query, query)):
                return
            await asyncio.sleep(0.05)


async def passed(venue: SimulatedAccount, holds: Callable[[], bool]) -> None:
    """Wait for the simulator's market, which moves by the second on this loop."""
    async with asyncio.timeout(60):
        while True:
            if holds():
                return
            await asyncio.sleep(venue.simulator.market_clock.until_next_s())
