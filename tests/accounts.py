"""Accounts of the tests, and a trading system that holds its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from qts.app import AccountSettings, TradingSystem, create_strategies, run_account
from qts.brokers import AccountLease, BrokersConfig, account_key
from qts.config import Config
from qts.database import Database
from qts.domain import AccountKey, SystemClock
from qts.venues import UpbitConfig, VenuesConfig

PAPER = account_key(BrokersConfig(), VenuesConfig())
VENUE = AccountKey.of("venue", "test")  # of tests/orders/fake_venue.py
UPBIT = account_key(
    BrokersConfig(broker="upbit"), VenuesConfig(upbit=UpbitConfig(url="http://127.0.0.1"))
)


@asynccontextmanager
async def trading_system(
    config: Config, database: Database, keys: Path
) -> AsyncIterator[TradingSystem]:
    """Build a trading system that holds its account; the caller opens it."""
    clock, strategies = SystemClock(), create_strategies(config)
    async with AccountLease(database, run_account(config), "home", clock, is_live=False) as lease:
        settings = AccountSettings(config, lease, keys)
        yield TradingSystem(config, database, clock, [settings], strategies)
