"""Runs on accounts that already hold something; the judge is the simulator's own record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from qts.simulators import (
    KisKey,
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    RequestLimits,
    UpbitKey,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from tests.acceptance.runs import Run, running

pytestmark = pytest.mark.timeout(300)

PLANTED = 5
TRADED = 6  # fills of other symbols before a run ends
MARKET = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0)
LIMIT = "60000"


class HeldVenue:
    """A simulator whose account holds five symbols, each 20 % under water."""

    def __init__(self, simulator: Any, name: str, lot: int) -> None:
        self.simulator, self.name = simulator, name
        self.symbols: list[str] = simulator.symbols()[:PLANTED]
        (customer,) = simulator.gateway.customers.values()
        self._account = customer.account
        for symbol in self.symbols:
            index = simulator.market.index[symbol]
            holding = self._account.holding(index)
            price = simulator.market.book(index).bids[0].price
            holding.quantity = lot
            holding.cost = int(price * lot * 1.25) // (10**8 if name == "upbit" else 1)
        self.planted = self.held()

    def held(self) -> dict[str, int]:
        index = self.simulator.market.index
        return {each: self._account.holding(index[each]).quantity for each in self.symbols}

    def orders(self) -> list[str]:
        """Return the symbol of every order that the venue took."""
        entries = self.simulator.orders.entries
        entries = entries.values() if isinstance(entries, dict) else entries
        codes = self.simulator.market.universe.codes
        return [codes[each.order.index] for each in entries]

    def settings(self, folder: Path) -> dict[str, str]:
        symbols = folder / "symbols"
        symbols.write_text("\n".join(self.simulator.symbols()))
        url, stream = self.simulator.url, self.simulator.ws_url
        common = {
            "QTS_BROKERS__BROKER": self.name,
            "QTS_FEED__VENUE": self.name,
            "QTS_FEED__SYMBOLS": str(symbols),
            "QTS_FEED__ALWAYS_OPEN": "true",
            "QTS_FEED__INTERVAL_S": "1",
            "QTS_ORDERS__RECONCILE_EVERY_S": "2",
            "QTS_PIPELINE__STRATEGIES": "tests.acceptance.seller:Seller",
            "QTS_TEST_PLANTED": " ".join(self.symbols),
        }
        if self.name == "upbit":
            coins = UpbitKey()
            return common | {
                "QTS_VENUES__UPBIT__ACCESS_KEY": coins.access_key,
                "QTS_VENUES__UPBIT__SECRET_KEY": coins.secret_key,
                "QTS_VENUES__UPBIT__URL": url,
                "QTS_VENUES__UPBIT__STREAM_URL": f"{stream}/websocket/v1",
            }
        stocks = KisKey()
        return common | {
            "QTS_VENUES__KIS__APP_KEY": stocks.app_key,
            "QTS_VENUES__KIS__APP_SECRET": stocks.app_secret,
            "QTS_VENUES__KIS__ACCOUNT": stocks.account,
            "QTS_VENUES__KIS__HTS_ID": stocks.hts_id,
            "QTS_VENUES__KIS__URL": url,
            "QTS_VENUES__KIS__STREAM_URL": stream,
            "QTS_VENUES__KIS__LIMITS__PER_SECOND": "100",
            "QTS_VENUES__KIS__LIMITS__PER_MINUTE": LIMIT,
            "QTS_VENUES__KIS__LIMITS__PER_DAY": LIMIT,
        }


@asynccontextmanager
async def held_venue(name: str) -> AsyncIterator[HeldVenue]:
    if name == "upbit":
        rates: Any = dict.fromkeys(("order_second", "default_second", "quotation_second"), 100_000)
        async with UpbitSimulator(UpbitSimulatorConfig(market=MARKET, **rates)) as coins:
            yield HeldVenue(coins, name, 10**8)
    else:
        none = RequestLimits(second=0, minute=0, day=0)
        async with KisSimulator(KisSimulatorConfig(market=MARKET, limits=none)) as stocks:
            yield HeldVenue(stocks, name, 10)


FILLS = "SELECT count(*) FROM fill"
CODES = "SELECT code FROM safety_log ORDER BY id"


@pytest.mark.parametrize("name", ["kis", "upbit"])
async def test_holdings_from_before_are_left_alone(name: str, tmp_path: Path) -> None:
    """Two runs that trade other symbols; a strategy that tries to sell them, and stops."""
    home = tmp_path / "home"
    async with held_venue(name) as venue:
        settings = venue.settings(tmp_path)
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
        orders = venue.orders()
        assert len(orders) >= TRADED
        assert set(orders) & set(venue.symbols) == set()
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
