"""Fixtures of the outbox tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import Secret
from qts.outbox import PostgresBus
from tests.outbox.kit import STREAMS


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=10)) as database:
        yield database


@pytest.fixture
async def bus(database: Database) -> AsyncIterator[PostgresBus]:
    async with PostgresBus.open(database, STREAMS) as bus:
        yield bus
