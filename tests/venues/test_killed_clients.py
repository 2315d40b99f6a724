"""Clients that are killed in mid-window and begin again, judged by what the simulator counted."""

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
LIVES = 3


@pytest.mark.parametrize("limits", [(18, 40, 1_000), (18, 1_000, 40)])
async def test_all_lives_of_a_key_together_stay_within_every_limit(
    tmp_path: Path, limits: tuple[int, int, int]
) -> None:
    """A life alone would use the minute, or the day, to its end: later ones find it used."""
    second, minute, day = limits
    allowed = RequestLimits(second=second, minute=minute, day=day)
    chance = random.Random(minute)  # noqa: S311 - the same every time
    market = MarketConfig(symbols=30)
    async with KisSimulator(KisSimulatorConfig(market=market, limits=allowed)) as simulator:
        for _ in range(LIVES):
            await _live_and_die(simulator.url, tmp_path, limits, chance.uniform(0.0, 1.5))
        seen: dict[str, Any] = simulator.stats()["keys"][KEY.app_key]
    assert seen["refused"] == 0
    assert seen["requests"] > second
    assert all(seen["worst"][window] <= limit for window, limit in seen["limits"].items()), seen


async def _live_and_die(url: str, home: Path, limits: tuple[int, int, int], after_s: float) -> None:
    life = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.venues.greedy_client",
        url,
        str(home),
        *map(str, limits),
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    assert life.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await life.stdout.readline()
        await asyncio.sleep(after_s)  # a kill at any moment is what is tested
    finally:
        life.kill()
        await life.communicate()
