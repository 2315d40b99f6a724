"""Owners of symbols: a strategy that did not get what it asked for gives the symbol back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import ManualClock, Secret, TimeInForce
from qts.pipeline import IntentTracker, Portfolio
from qts.pipeline.order_updates import OrderUpdatePublisher
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion
from qts.venues import VenueRejectedError
from tests.orders.kit import START, SYMBOL, OrderKit, open_kit


class Run:
    """Order updates of a kit, published as in a run."""

    def __init__(self, kit: OrderKit, portfolio: Portfolio) -> None:
        self.kit = kit
        self.portfolio = portfolio
        self.positions = PositionSync(portfolio, Mock(parked=set()), {})
        self.updates = OrderUpdatePublisher(
            Mock(try_publish=Mock(return_value=True)),
            self.positions,
            IntentTracker(),
            cast(Any, AsyncMock()),
            AccountVersion(),
            Mock(),
        )

    async def settle(self) -> dict[str, str]:
        """Publish what has happened, and return the owners after it."""
        changes, self.kit.changes[:] = list(self.kit.changes), []
        for change in changes:
            self.updates(change)
        await self.updates.close()
        self.updates._closed = False
        return self.portfolio.owners

    async def enter(self, **more: Any) -> None:
        await self.kit.submit(**more)
        self.positions.set_owner(SYMBOL, "scalper")
        await self.kit.work()


@pytest.fixture
async def run(database_url: Secret) -> AsyncIterator[Run]:
    clock = ManualClock(START)
    settings = DatabaseConfig(pool_min=1, pool_max=5)
    async with (
        Database.open(database_url, settings) as database,
        open_kit(database, clock) as kit,
    ):
        run = Run(kit, Portfolio(clock))
        await run.positions.load(database, kit.venue)
        yield run


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
