"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import Secret
from tests.faults.orders.rig import Rig, rig


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=10)) as database:
        yield database


@pytest.fixture
async def made(database: Database) -> AsyncIterator[Rig]:
    async with rig(database) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Log file of the worker, shown when a test fails."""
    return tmp_path / "worker.log"
