"""A worker killed in the middle of a rate window: the next does not begin at nothing."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qts.database import Database
from qts.domain import Secret
from tests.faults.orders.rig import Rig, rig, worker
from tests.outbox.kit import until
from tests.outbox.worker_group import seed

PER_SECOND = 4
LIVES = 4


async def test_all_lives_of_a_worker_together_keep_the_venues_limit(
    database: Database, database_url: Secret, log: Path
) -> None:
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with (
        rig(database, order_second=PER_SECOND) as made,
        worker(made, database_url, log, orders_per_second=PER_SECOND) as trading,
    ):
        symbols = itertools.cycle(made.symbols)  # what a death left unknown shuts its market
        for _ in range(LIVES - 1):
            expected = len(made.entries) + PER_SECOND - 1
            submitting = asyncio.create_task(_submit(made, symbols))
            await until(functools.partial(_has, made, expected), 60)
            await asyncio.sleep(chance.uniform(0.0, 0.1))  # nearly all of a second is used
            await trading.kill()
            await submitting
            await trading.start()
            await trading.is_ready()
        await made.settle()
        counted = _orders_of(made)
    assert counted["refused"] == 0
    assert counted["worst"]["second"] <= PER_SECOND
    assert counted["requests"] >= len(made.entries) > PER_SECOND
    found = await made.states()
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}
    assert sum(found.values()) == (LIVES - 1) * 2 * PER_SECOND


async def _submit(made: Rig, symbols: Iterator[str]) -> None:
    for _ in range(2 * PER_SECOND):
        await made.submit(1, symbol=next(symbols))


async def _has(made: Rig, count: int) -> bool:
    return len(made.entries) >= count


def _orders_of(made: Rig) -> dict[str, Any]:
    """The orders of our key as the simulator has counted them."""
    keys: dict[str, dict[str, Any]] = made.simulator.stats()["keys"]
    (counted,) = (found for name, found in keys.items() if name.endswith(" order"))
    return counted
