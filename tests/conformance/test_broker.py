"""Our brokers, each on a venue with its own record of orders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qts.database import Database
from qts.testing import BrokerMarket, BrokerSuite, NetworkedBrokerSuite
from tests.conformance.venues import SimulatedMarket, kis, paper, upbit


class TestPaperBroker(BrokerSuite):
    @pytest.fixture
    async def market(self, database: Database, tmp_path: Path) -> AsyncIterator[BrokerMarket]:
        async with paper(database, tmp_path) as market:
            yield market


class TestKisBroker(NetworkedBrokerSuite):
    @pytest.fixture
    async def market(self, database: Database, tmp_path: Path) -> AsyncIterator[SimulatedMarket]:
        async with kis(database, tmp_path) as market:
            yield market


class TestUpbitBroker(NetworkedBrokerSuite):
    @pytest.fixture
    async def market(self, database: Database, tmp_path: Path) -> AsyncIterator[SimulatedMarket]:
        async with upbit(database, tmp_path) as market:
            yield market
