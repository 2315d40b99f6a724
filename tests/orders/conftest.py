"""Fixtures of the orders tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import ManualClock, Secret
from tests.orders.kit import START, OrderKit, open_kit


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=10)) as database:
        yield database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
async def kit(database: Database, clock: ManualClock) -> AsyncIterator[OrderKit]:
    """A desk that may trade."""
    async with open_kit(database, clock) as made:
        yield made
