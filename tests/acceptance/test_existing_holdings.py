"""Runs on accounts that already hold something; the judge is the simulator's own record."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from qts.simulators import MarketConfig
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account

pytestmark = pytest.mark.timeout(300)

PLANTED = 5
TRADED = 6  # fills of other symbols before a run ends
MARKET = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0)


class HeldVenue(SimulatedAccount):
    """A simulator whose account holds five symbols, each 20 % under water."""

    def __init__(self, simulator: Any, name: str) -> None:
        super().__init__(simulator, name)
        self.symbols: list[str] = simulator.symbols()[:PLANTED]
        lot, unit = (10**8, 10**8) if name == "upbit" else (10, 1)
        for symbol in self.symbols:
            index = simulator.market.index[symbol]
            holding = self.account.holding(index)
            price = simulator.market.book(index).bids[0].price
            holding.quantity = lot
            holding.cost = int(price * lot * 1.25) // unit
        self.planted = self.held()

    def held(self) -> dict[str, Decimal]:
        held = self.holdings()
        return {each: held[each] for each in self.symbols}


FILLS = "SELECT count(*) FROM fill"
CODES = "SELECT code FROM safety_log ORDER BY id"


@pytest.mark.parametrize("name", ["kis", "upbit"])
async def test_holdings_from_before_are_left_alone(name: str, tmp_path: Path) -> None:
    """Two runs that trade other symbols; a strategy that tries to sell them, and stops."""
    home = tmp_path / "home"
    async with simulated_account(name, MARKET) as account:
        venue = HeldVenue(account.simulator, name)
        settings = venue.settings(tmp_path) | {
            "QTS_PIPELINE__STRATEGIES": "tests.acceptance.seller:Seller",
            "QTS_TEST_PLANTED": " ".join(venue.symbols),
        }
        for number in (1, 2):
            with running(home, **settings) as run:
                await asyncio.to_thread(run.until, "Ready")
                await _until_filled(run, number * TRADED)
                code = await asyncio.to_thread(run.end, SIGTERM)
                assert code == 0, run.errors[-4000:]
                summary = run.summary
            assert summary["books_agree"], summary["differences"]
            assert sorted(summary["baseline"]) == sorted(venue.symbols)
            assert summary["safety"] in ("NORMAL", "WARNING")
        orders = venue.orders().values()
        assert len(orders) >= TRADED
        assert {order.symbol for order in orders} & set(venue.symbols) == set()
        assert venue.held() == venue.planted


async def _until_filled(run: Run, expected: int) -> None:
    """Wait for fills; no position may differ meanwhile, and nothing may be sold in a panic."""
    async with asyncio.timeout(120):
        while True:
            (fills,) = await asyncio.to_thread(run.query, FILLS)
            codes = {row[0] for row in await asyncio.to_thread(run.query, CODES)}
            assert not {"FS070", "FS104"} & codes, codes
            if fills[0] >= expected:
                return
            await asyncio.sleep(0.5)  # another process: there is no signal to wait for
