"""Wait of an order among thousands of queued polls: short, and behind none of them."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from qts.domain import Secret, SystemClock
from qts.simulators import KisKey, KisSimulator, KisSimulatorConfig, MarketConfig
from qts.venues import (
    KisClient,
    KisConfig,
    KisEndpoint,
    RateLimitConfig,
    RateLimiter,
    RequestPriority,
)

PRICE = KisEndpoint("/uapi/domestic-stock/v1/quotations/inquire-price", "FHKST01010100")
POLLS = 2500
LIMITS = RateLimitConfig(per_second=18)
PAUSES_S = (0.5, 1.5)  # between two orders of a key: 60 a minute, and 75 are reserved


class Wait(NamedTuple):
    ms: float
    passed_by: int  # requests granted before it while it waited


async def _wait_of(client: KisClient, priority: RequestPriority, symbol: str) -> Wait:
    """Measure the wait of a request until it is granted; then send it."""
    asked, before = time.perf_counter(), client.limiter.status().granted
    waited = Wait(0.0, 0)

    def values() -> Mapping[str, str]:
        nonlocal waited
        others = client.limiter.status().granted - before - 1
        waited = Wait((time.perf_counter() - asked) * 1000, others)
        return {"FID_COND_MRKT_DIV_CODE": "J", "FID_INPUT_ISCD": symbol}

    await client.call(PRICE, values, priority)
    return waited


async def _waits(folder: Path, seconds: float, of_keys: int) -> tuple[list[Wait], KisSimulator]:
    """Orders of some keys at random moments, each key with 2,500 polls queued all the time."""
    keys = tuple(KisKey(app_key=f"key-{n}") for n in range(of_keys))
    market = MarketConfig(symbols=60, suspended=0)
    rng = random.Random(5)  # noqa: S311 - the same every time
    waits: list[Wait] = []
    async with (
        KisSimulator(KisSimulatorConfig(market=market, keys=keys)) as simulator,
        AsyncExitStack() as stack,
    ):
        clients = [await _open_client(stack, simulator.url, key, folder) for key in keys]
        symbol = simulator.market.universe.codes[7]
        lines = [_keep_queued(stack, client, symbol) for client in clients]
        await asyncio.gather(*(_wait_of(each, RequestPriority.ORDER, symbol) for each in clients))

        async def orders(client: KisClient, in_line: Callable[[], int]) -> None:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                await asyncio.sleep(rng.uniform(*PAUSES_S))
                assert in_line() >= POLLS - 100
                waits.append(await _wait_of(client, RequestPriority.ORDER, symbol))

        await asyncio.gather(
            *(orders(client, line) for client, line in zip(clients, lines, strict=True))
        )
    return waits, simulator


async def _open_client(stack: AsyncExitStack, url: str, key: KisKey, folder: Path) -> KisClient:
    clock = SystemClock()
    config = KisConfig(
        app_key=Secret(key.app_key), app_secret=Secret(key.app_secret), url=url, limits=LIMITS
    )
    budget = RateLimiter(LIMITS, clock)
    stack.callback(budget.close)
    return await stack.enter_async_context(KisClient.open(config, budget, clock, folder))


def _keep_queued(stack: AsyncExitStack, client: KisClient, symbol: str) -> Callable[[], int]:
    """Keep 2,500 polls queued; return a function that counts those waiting."""

    async def poll() -> None:
        while True:
            await _wait_of(client, RequestPriority.NORMAL, symbol)

    tasks = [asyncio.create_task(poll()) for _ in range(POLLS)]

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    stack.push_async_callback(stop)
    return lambda: client.limiter.status().waiting


def _check(waits: list[Wait], simulator: KisSimulator) -> None:
    assert max(wait.passed_by for wait in waits) == 0
    for seen in simulator.stats()["keys"].values():
        assert seen["refused"] == 0
        assert seen["worst"]["second"] <= 18


async def test_an_order_among_2500_polls_is_passed_by_none(tmp_path: Path) -> None:
    waits, simulator = await _waits(tmp_path, seconds=3.0, of_keys=2)
    assert len(waits) >= 2
    _check(waits, simulator)


@pytest.mark.soak
@pytest.mark.timeout(200)
async def test_500_orders_among_2500_polls_have_their_tokens_in_60_ms(tmp_path: Path) -> None:
    waits, simulator = await _waits(tmp_path, seconds=70.0, of_keys=8)
    assert len(waits) >= 500
    assert statistics.quantiles((wait.ms for wait in waits), n=100)[98] < 60.0
    _check(waits, simulator)
