"""A throw-away trading system on the KIS simulator, for measurements."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from qts.app import (
    AccountSettings,
    SimulatedVenue,
    TradingSystem,
    cache_url,
    create_strategies,
    database_url,
    run_account,
    start_servers,
)
from qts.brokers import AccountLease
from qts.config import Config
from qts.database import Database, migrate
from qts.domain import Clock, krx_instrument
from qts.embedded import Home

PROBES = [f"9000{number:02}" for number in range(50)]  # symbols that the simulator does not have


@contextlib.asynccontextmanager
async def open_sandbox(home: Home, config: Config, clock: Clock) -> AsyncIterator[TradingSystem]:
    """Run a trading system in `home` on the KIS simulator."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(start_servers(home, config))
        database = await stack.enter_async_context(
            Database.open(database_url(config, home), config.database)
        )
        await migrate(database)
        simulated = SimulatedVenue(home, config.simulator)
        await asyncio.to_thread(simulated.__enter__)
        stack.push_async_callback(asyncio.to_thread, simulated.__exit__)
        config = await asyncio.to_thread(simulated.settings, config)
        strategies = create_strategies(config)
        key = run_account(config)
        lease = AccountLease(database, key, str(home.path), clock, is_live=False)
        await stack.enter_async_context(lease)
        account = AccountSettings(config, lease, simulated.keys)
        trading = TradingSystem(config, database, clock, [account], strategies)
        await stack.enter_async_context(trading.open(cache_url(config, home)))
        known = trading.accounts[0].instruments
        known.replace([*known, *map(krx_instrument, PROBES)])
        yield trading
