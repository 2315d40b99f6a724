"""A standby takes over from a run that is killed, frozen or cut off: nothing is lost or doubled.

Judged by the simulator's own record; QTS_SEED repeats a long run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.faults.pair import Pair, pair
from tests.outbox.worker_group import seed

ROUNDS = int(os.environ.get("QTS_ROUNDS", "300"))
FAULTS = ("killed", "frozen", "cut off", "PostgreSQL restarted", "handed over")
LIMIT_S = 5.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path.resolve()


async def check(pair: Pair) -> None:
    await pair.end()
    assert await pair.wrong_epochs() == []
    assert await pair.judge() == []


@pytest.mark.timeout(120)
async def test_a_standby_takes_over_from_a_run_that_is_killed(folder: Path) -> None:
    async with pair(folder, 1) as two:
        took = await two.round("killed")
        print(f"takeover after {took:.2f} s")
        await two.trades(2)
        await check(two)


@pytest.mark.soak
@pytest.mark.timeout(ROUNDS * 60)
async def test_a_standby_takes_over_whatever_happens(folder: Path) -> None:
    async with pair(folder, seed()) as two:
        for number in range(ROUNDS):
            name, began = two.chance.choice(FAULTS), time.monotonic()
            took = await two.round(name)
            print(
                f"round {number + 1} {name}: lease {two.lease_s:.2f} s, order {took:.2f} s,"
                f" round {time.monotonic() - began:.1f} s, {len(two.placed)} orders",
                flush=True,
            )
        await two.trades(2)
        await check(two)
        for name, times in two.takeovers.items():
            p50, p99 = np.percentile(times, (50, 99))
            print(f"{name}: {len(times)} rounds, p50 {p50:.2f} s, p99 {p99:.2f} s")
