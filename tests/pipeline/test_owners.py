"""Owners of symbols: a strategy that did not get what it asked for gives the symbol back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from decimal import Decimal
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import ExitLevels, ManualClock, Secret, Side, TimeInForce
from qts.events import AsyncPublisher, EventEngine, EventsConfig, Priority
from qts.pipeline import IntentTracker, OrderUpdatePublisher, Portfolio
from qts.pipeline.order_handlers import OrderEventHandler
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion
from qts.venues import VenueRejectedError
from tests.instruments import LISTED
from tests.orders.kit import START, SYMBOL, OrderKit, approved, open_kit


class Run:
    """Order updates of a kit, through lane P0 as in a run."""

    def __init__(self, kit: OrderKit, portfolio: Portfolio) -> None:
        self.kit = kit
        self.portfolio = portfolio
        self.positions = PositionSync(portfolio, Mock(parked=set()), {}, kit.clock)
        self.engine, version = EventEngine(EventsConfig()), AccountVersion()
        self.updates = OrderUpdatePublisher(
            AsyncPublisher(self.engine, "tests"), self.positions, version, Mock()
        )
        self.handler = OrderEventHandler(
            self.engine, self.positions, IntentTracker(), cast(Any, AsyncMock()), version, {}
        )
        self.engine.start()

    async def settle(self) -> Mapping[str, str]:
        """Publish what has happened, and return the owners after it."""
        changes, self.kit.changes[:] = list(self.kit.changes), []
        for change in changes:
            self.updates(change)
        assert await asyncio.to_thread(self.engine.wait_drained, 20, Priority.P0)
        await self.handler.close()
        return self.portfolio.owners

    async def enter(self, **more: Any) -> None:
        await self.kit.submit(**more)
        self.positions.entered(approved(self.kit.clock, **more).proposal)
        await self.kit.work()


@pytest.fixture
async def run(database_url: Secret) -> AsyncIterator[Run]:
    clock = ManualClock(START)
    settings = DatabaseConfig(pool_min=1, pool_max=5)
    async with (
        Database.open(database_url, settings) as database,
        open_kit(database, clock) as kit,
    ):
        run = Run(kit, Portfolio(clock, LISTED))
        await run.positions.load(database, kit.venue)
        yield run
        await asyncio.to_thread(run.engine.stop)


async def test_a_rejected_entry_gives_the_symbol_back(run: Run) -> None:
    run.kit.venue.before = lambda _request: VenueRejectedError("no money", "no_money")
    await run.enter()
    assert await run.settle() == {}


async def test_a_cancelled_entry_gives_the_symbol_back_unless_it_bought(run: Run) -> None:
    for bought, owners in ((0, {}), (1, {SYMBOL: "scalper"})):
        await run.enter(time_in_force=TimeInForce.GTC)
        assert await run.settle() == {SYMBOL: "scalper"}  # it rests
        order_id = f"V{len(run.kit.venue.book) + len(run.kit.venue.trades)}"
        if bought:
            run.kit.venue.trade(order_id, Decimal(bought), Decimal(100))
        await run.kit.venue.cancel(order_id)
        await run.kit.reconciler.reconcile_now()
        assert await run.settle() == owners


async def test_a_second_entry_that_rests_keeps_the_symbol(run: Run) -> None:
    await run.enter()
    run.kit.venue.before = lambda _request: VenueRejectedError("no money", "no_money")
    await run.enter()
    assert await run.settle() == {SYMBOL: "scalper"}


def exits_of(run: Run) -> ExitLevels | None:
    """Return the exits that the stops were given last."""
    pushed = cast(Any, run.positions)._micro_risk.set_positions.call_args[0][0]
    return next((each.exits for each in pushed), None)


async def test_the_exits_of_an_entry_outlive_the_run(run: Run) -> None:
    levels = ExitLevels(stop=Decimal(95), target=Decimal(110), trail=Decimal("0.05"))
    await run.enter(exits=levels)
    run.kit.venue.trade("V1", Decimal(2), Decimal(100))
    await run.kit.reconciler.reconcile_now()
    await run.settle()
    assert exits_of(run) == levels
    sale = approved(run.kit.clock, side=Side.SELL).proposal
    run.positions.entered(sale)  # reduces the position, and says nothing of its exits
    assert exits_of(run) == levels
    after = Run(run.kit, Portfolio(run.kit.clock, LISTED))
    await after.positions.load(run.kit.database, run.kit.venue)
    assert exits_of(after) == levels
    await asyncio.to_thread(after.engine.stop)


async def test_the_exits_of_a_strategy_are_not_those_of_another_owner(run: Run) -> None:
    await run.enter(exits=ExitLevels(stop=Decimal(95)))
    run.kit.venue.trade("V1", Decimal(2), Decimal(100))
    await run.kit.reconciler.reconcile_now()
    await run.settle()
    run.portfolio.set_owner(SYMBOL, "")  # the operator has it now
    run.positions.push_to_stops()
    assert exits_of(run) is None
