"""A worker that dies at the worst moments: nothing is lost, nothing is ordered twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from qts.domain import Secret
from tests.faults.orders.rig import Rig, worker
from tests.outbox.worker_group import seed


async def test_without_faults_orders_are_placed_and_filled(
    made: Rig, database_url: Secret, log: Path
) -> None:
    async with worker(made, database_url, log) as trading:
        await made.submit(10)
        await made.settle()
        assert await made.states() == {"ACKED": 10}
        assert len(made.entries) == 10
        assert any(entry.order.filled for entry in made.entries)
        assert await trading.stop() == 0


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("place", ["before_send", "after_send", "before_commit"])
async def test_a_death_at_a_named_place_orders_nothing_twice(
    made: Rig, database_url: Secret, log: Path, place: str, times: int
) -> None:
    async with worker(made, database_url, log, f"{place}:{times}") as trading:
        await made.submit(6)
        await trading.dies()
        await trading.start()
        await trading.is_ready()
        await made.settle()
    found = await made.states()
    assert sum(found.values()) == 6
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}
    if place == "before_send":  # that one never left, and is not sent late
        assert found["ABSENT"] >= 1
    else:
        assert found["ACKED"] >= times


async def test_a_death_during_recovery_does_no_harm(
    made: Rig, database_url: Secret, log: Path
) -> None:
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with worker(made, database_url, log, "after_send:2") as trading:
        await made.submit(6)
        await trading.dies()
        for _ in range(10):
            await trading.start()
            await asyncio.sleep(chance.uniform(0.05, 0.3))  # the moment of death is the point
            await trading.kill()
        await trading.start()
        await trading.is_ready()
        await made.settle()
    found = await made.states()
    assert sum(found.values()) == 6
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}
    assert found["ACKED"] >= 2


async def _kill_at_random(
    made: Rig, database_url: Secret, log: Path, kills: int, each: int
) -> None:
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with worker(made, database_url, log) as trading:
        for _ in range(kills):
            submitting = asyncio.create_task(made.submit(each))
            await asyncio.sleep(chance.uniform(0.005, 0.5))  # the moment of death is the point
            await trading.kill()
            await submitting
            await trading.start()
            await trading.is_ready()
        await made.settle(120)  # an abandoned attempt ends when its signal expires
        before = await made.states()
        await made.submit(each)  # whatever happened, the last one trades
        await made.settle(120)
    found = await made.states()
    print(f"{kills} kills, {trading.starts} starts: {found}, {len(made.entries)} at the venue")
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}
    assert sum(found.values()) == (kills + 1) * each
    assert found["ACKED"] == before.get("ACKED", 0) + each


@pytest.mark.timeout(300)
async def test_kills_at_random_moments_lose_nothing(
    made: Rig, database_url: Secret, log: Path
) -> None:
    await _kill_at_random(made, database_url, log, kills=5, each=4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_two_hundred_kills_lose_nothing(made: Rig, database_url: Secret, log: Path) -> None:
    await _kill_at_random(made, database_url, log, kills=200, each=4)
