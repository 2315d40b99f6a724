"""Runs on accounts that already hold something; the judge is the venue's own record of orders.

At a simulator that takes orders a run keeps the time of the clock. The paper broker takes orders in
a market that is faster: a whole trading day of prices takes minutes.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from signal import SIGTERM
from typing import Any, NamedTuple

import asyncpg
import pytest

from qts.embedded import Home
from qts.simulators import MarketConfig
from tests.acceptance.runs import VENUE, Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account

pytestmark = pytest.mark.timeout(300)

PLANTED = 5
TRADED = 6  # fills of other symbols before a run ends
UNDER_WATER = 1.25  # cost as a multiple of the price
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
            holding.cost = int(price * lot * UNDER_WATER) // unit
        self.planted = self.held()

    def price(self, symbol: str) -> Decimal:
        market = self.simulator.market
        return Decimal(market.book(market.index[symbol]).bids[0].price) / self._unit

    def settings(self, folder: Path) -> dict[str, str]:
        """Return the settings of a run whose strategy trades the others and tries to sell these."""
        return super().settings(folder) | {
            "QTS_PIPELINE__STRATEGIES": "tests.acceptance.seller:Seller",
            "QTS_TEST_PLANTED": " ".join(self.symbols),
        }

    def held(self) -> dict[str, Decimal]:
        held = self.holdings()
        return {each: held[each] for each in self.symbols}


FILLS = "SELECT count(*) FROM fill"
CODES = "SELECT code FROM safety_log ORDER BY id"


@pytest.mark.parametrize("name", ["kis", pytest.param("upbit", marks=pytest.mark.soak)])
async def test_holdings_from_before_are_left_alone(name: str, tmp_path: Path) -> None:
    """Two runs that trade other symbols; a strategy that tries to sell them, and stops."""
    home = tmp_path / "home"
    async with simulated_account(name, MARKET) as account:
        venue = HeldVenue(account.simulator, name)
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
            assert summary["safety"] in ("NORMAL", "WARNING"), run.errors[-4000:]
        orders = venue.orders().values()
        assert len(orders) >= TRADED
        assert {order.symbol for order in orders} & set(venue.symbols) == set()
        assert venue.held() == venue.planted


async def _until_filled(run: Run, expected: int) -> None:
    """Wait for fills; no position may differ meanwhile, and nothing may be sold in a panic."""
    async with asyncio.timeout(120):
        fills = await _check(run)
        while fills < expected:
            await asyncio.sleep(0.5)  # another process: there is no signal to wait for
            fills = await _check(run)


async def _check(run: Run) -> int:
    """Return the number of fills."""
    (fills,) = await asyncio.to_thread(run.query, FILLS)
    codes = {row[0] for row in await asyncio.to_thread(run.query, CODES)}
    assert not {"FS070", "FS104"} & codes, codes
    return int(fills[0])


class Day(NamedTuple):
    """Hours of a trading day, and the pace at which they pass."""

    name: str
    hours: float
    speed: float


STOCKS, COINS = Day("kis", 6.5, 60.0), Day("upbit", 24.0, 200.0)
SOAK = (pytest.mark.soak, pytest.mark.timeout(1200))
BOOK = "INSERT INTO paper_book (name, epoch, opened_at) VALUES ('paper', 1, now())"
HOLD = "INSERT INTO paper_account (book, symbol, quantity, cost) VALUES ('paper', $1, $2, $3)"
ORDERED = "SELECT symbol, side FROM paper_order"
ATTEMPTED = "SELECT DISTINCT symbol FROM order_attempt"
TRADING = {
    "QTS_BROKERS__BROKER": "paper",
    "QTS_RISK__LIMITS__ORDERS_PER_DAY": "1000000",
    "QTS_RISK__LIMITS__ORDERS_PER_MINUTE": "1000000",
    "QTS_RISK__LIMITS__DAILY_LOSS": "1",
    "QTS_FEED__RECORD": "false",
}


@pytest.mark.parametrize(
    "day",
    [
        pytest.param(Day("upbit", 0.2, 200.0), marks=SOAK),
        pytest.param(STOCKS, marks=SOAK),
        pytest.param(COINS, marks=SOAK),
    ],
    ids=lambda day: f"{day.name} {day.hours:g} h",
)
async def test_hours_of_the_market_leave_holdings_alone(day: Day, tmp_path: Path) -> None:
    """The paper account holds five symbols under water for hours of prices, stops on."""
    home = tmp_path / "home"
    market = MarketConfig(symbols=20, surges_per_hour=4.0, suspended=0, speed=day.speed)
    async with simulated_account(day.name, market) as account:
        venue = HeldVenue(account.simulator, day.name)
        before = {each: float(venue.price(each)) for each in venue.symbols}
        settings = venue.settings(tmp_path) | TRADING
        with running(home, "--servers-only") as run:
            await asyncio.to_thread(run.until, "Ready")
            await _plant(home, venue)
            assert await asyncio.to_thread(run.end, SIGTERM) == 0
        clock = account.simulator.market_clock
        ends = clock.now() + int(day.hours * 3600)
        with running(home, **settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            ordered: list[Any] = []
            async with asyncio.timeout(1000):
                while clock.now() < ends or {row["side"] for row in ordered} != {"BUY", "SELL"}:
                    await _check(run)
                    await asyncio.sleep(2.0)  # the day passes
                    ordered = await asyncio.to_thread(run.query, ORDERED)
            attempted = {row[0] for row in await asyncio.to_thread(run.query, ATTEMPTED)}
            held = {row[0]: row[1] for row in await asyncio.to_thread(run.query, VENUE)}
            after = {each: float(venue.price(each)) for each in venue.symbols}
            code = await asyncio.to_thread(run.end, SIGTERM)
            assert code == 0, run.errors[-4000:]
            summary = run.summary
        print(f"{day}: {len(ordered)} orders, {summary['fills']} fills, {summary['ticks']} ticks;")
        print(f"orders in {sorted(attempted)}; held at {before}, at the end {after}")
    assert {row["symbol"] for row in ordered} & set(venue.symbols) == set()
    assert attempted & set(venue.symbols) == set()
    assert {row["side"] for row in ordered} == {"BUY", "SELL"}
    assert {each: held[each] for each in venue.symbols} == venue.planted
    assert summary["books_agree"], summary["differences"]
    assert sorted(summary["baseline"]) == sorted(venue.symbols)


async def _plant(home: Path, venue: HeldVenue) -> None:
    connection = await asyncpg.connect(Home.at(home).postgres_url().reveal())
    try:
        await connection.execute(BOOK)
        for symbol, quantity in venue.planted.items():
            cost = quantity * venue.price(symbol) * Decimal(UNDER_WATER)
            await connection.execute(HOLD, symbol, quantity, cost)
    finally:
        await connection.close()
