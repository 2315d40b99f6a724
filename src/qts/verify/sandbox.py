"""Sandbox: a complete trading system on private servers and a simulated venue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from qts.app import SimulatedVenue, TradingSystem, cache_url, database_url, start_servers
from qts.config import Config
from qts.database import Database, migrate
from qts.domain import Clock
from qts.embedded import Home


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
        trading = TradingSystem(config, database, clock)
        yield await stack.enter_async_context(trading.open(cache_url(config, home), simulated.keys))
