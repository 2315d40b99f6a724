"""Clients that are killed in mid-window and restarted, checked against the simulator's count."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig, RequestLimits
from tests.venues.kis import KEY

REPOSITORY = Path(__file__).parents[2]
RUNS = 3


# The first waits for the next minute.
@pytest.mark.parametrize(
    "limits", [pytest.param((18, 40, 1_000), marks=pytest.mark.soak), (18, 1_000, 40)]
)
async def test_killed_clients_of_a_key_together_stay_within_every_limit(
    tmp_path: Path, limits: tuple[int, int, int]
) -> None:
    """One client alone uses up the minute, or the day: later ones find it used."""
    second, minute, day = limits
    allowed = RequestLimits(second=second, minute=minute, day=day)
    chance = random.Random(minute)  # noqa: S311 - the same every time
    market = MarketConfig(symbols=30)
    async with KisSimulator(KisSimulatorConfig(market=market, limits=allowed)) as simulator:
        for _ in range(RUNS):
            await _run_and_kill(simulator.url, tmp_path, limits, chance.uniform(0.0, 1.5))
        stats: dict[str, Any] = simulator.stats()["keys"][KEY.app_key]
    assert stats["refused"] == 0
    assert stats["requests"] > second
    assert all(stats["worst"][window] <= limit for window, limit in stats["limits"].items()), stats


async def _run_and_kill(url: str, home: Path, limits: tuple[int, int, int], after_s: float) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.venues.greedy_client",
        url,
        str(home),
        *map(str, limits),
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline()
        await asyncio.sleep(after_s)  # the test kills at arbitrary moments
    finally:
        process.kill()
        await process.communicate()
