"""Simulators on a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from qts.domain import ManualClock
from qts.simulators import (
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from tests.simulators.clients import Kis, KisSocket, Upbit

# Monday 2026-11-16, 08:59 in Seoul; the market clock starts at the opening.
MORNING = datetime(2026, 11, 15, 23, 59, tzinfo=UTC)
SMALL = MarketConfig(symbols=40, surges_per_hour=0.0)

StartKis = Callable[..., Awaitable[Kis]]
StartUpbit = Callable[..., Awaitable[Upbit]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(MORNING)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def http(stack: AsyncExitStack) -> aiohttp.ClientSession:
    return await stack.enter_async_context(aiohttp.ClientSession())


@pytest.fixture
def start_kis(clock: ManualClock, stack: AsyncExitStack, http: aiohttp.ClientSession) -> StartKis:
    async def start(**settings: Any) -> Kis:
        config = KisSimulatorConfig(**{"market": SMALL, **settings})
        client = Kis(await stack.enter_async_context(KisSimulator(config, clock)), http)
        await client.issue()
        return client

    return start


@pytest.fixture
async def kis(start_kis: StartKis) -> Kis:
    return await start_kis()


@pytest.fixture
def start_upbit(
    clock: ManualClock, stack: AsyncExitStack, http: aiohttp.ClientSession
) -> StartUpbit:
    async def start(**settings: Any) -> Upbit:
        market = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0)
        config = UpbitSimulatorConfig(**{"market": market, **settings})
        return Upbit(await stack.enter_async_context(UpbitSimulator(config, clock)), http)

    return start


@pytest.fixture
async def upbit(start_upbit: StartUpbit) -> Upbit:
    return await start_upbit()


@pytest.fixture
def connect(stack: AsyncExitStack, http: aiohttp.ClientSession) -> Callable[..., Any]:
    async def connect(client: Kis, path: str = "/tryitout") -> KisSocket:
        url = client.simulator.ws_url + path
        socket = await stack.enter_async_context(http.ws_connect(url, autoping=True))
        return KisSocket(socket, await client.approval())

    return connect
