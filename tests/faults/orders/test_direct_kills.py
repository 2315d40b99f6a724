"""A process that dies on the direct way of an order: nothing is lost, nothing is ordered twice.

The process submits the orders itself, and the same ones again after each start. The record of the
simulated venue decides what was ordered.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qts.domain import TICK_TABLES, IntentType, OrderType, Secret, Side
from qts.orders import SubmitResult
from tests.faults.orders.rig import Rig, Worker, idle_worker, job_of
from tests.outbox.kit import until
from tests.outbox.worker_group import seed

PLACES = (
    "before_statement",
    "after_statement",
    "before_send",
    "after_send",
    "before_commit",
    "after_commit",
)


def propose(made: Rig, trading: Worker, count: int) -> None:
    """Add orders to the job of the process, over five symbols."""
    number = len(trading.job.proposals)
    trading.job.proposals += [
        made.proposal(made.symbols[each % 5]) for each in range(number, number + count)
    ]


async def settle(made: Rig) -> Counter[str]:
    """Wait until nothing is in flight; return the states of the attempts, checked at the venue."""
    rows = await made.database.fetch("SELECT id FROM order_intent")
    made.submitted = [SubmitResult(intent_id=row["id"], attempt_id=None) for row in rows]
    await made.settle()
    found = Counter(await made.states())
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}, found
    assert len(made.entries) == found["ACKED"]
    return found


async def direct_orders(made: Rig) -> int:
    """Return how many attempts were inserted as SENT: a worker sends after the insert."""
    count: int = await made.database.fetchval(
        "SELECT count(*) FROM order_attempt WHERE sent_at < created_at"
    )
    return count


async def restart(trading: Worker, die_at: str = "") -> None:
    await trading.start(die_at)
    await trading.is_ready()


async def test_orders_are_sent_directly_and_their_commands_are_done(
    made: Rig, database_url: Secret, log: Path
) -> None:
    async with idle_worker(job_of(made, database_url), log) as trading:
        propose(made, trading, 5)  # one of each symbol: a second one may have to wait for it
        await restart(trading)
        await made.until_stored(5)
        assert await settle(made) == {"ACKED": 5}
        assert await direct_orders(made) == 5
        assert await trading.stop() == 0


@pytest.mark.parametrize("place", PLACES)
async def test_a_death_between_two_steps_orders_nothing_twice(
    made: Rig, database_url: Secret, log: Path, place: str
) -> None:
    async with idle_worker(job_of(made, database_url), log) as trading:
        propose(made, trading, 5)
        await trading.start(f"{place}:2")
        await trading.dies()
        await restart(trading)
        await made.until_stored(5)
        found = await settle(made)
    assert found.total() == 5
    if place in ("after_statement", "before_send"):  # stored, and never sent
        assert found["ABSENT"] >= 1


async def test_an_exit_that_was_not_recorded_is_not_sold_twice(
    made: Rig, database_url: Secret, log: Path
) -> None:
    async with idle_worker(job_of(made, database_url), log) as trading:
        symbol = made.symbols[0]
        entry = made.proposal(symbol)
        assert entry.price is not None
        ahead = 50 * TICK_TABLES["upbit-krw"].size(
            entry.price
        )  # it fills, however the market moves
        trading.job.proposals.append(replace(entry, price=entry.price + ahead))
        await restart(trading)
        await made.until_stored(1)
        assert await settle(made) == {"ACKED": 1}

        async def held_quantity() -> Any:
            return await made.database.fetchval(
                "SELECT quantity FROM position WHERE symbol = $1", symbol
            )

        await until(held_quantity, 60)  # its fill is reported after it was accepted
        held = await held_quantity()
        await trading.stop()
        more: dict[str, Any] = {"side": Side.SELL, "type": OrderType.MARKET, "price": None}
        more |= {"quantity": held, "intent_type": IntentType.EXIT_STOPLOSS}
        trading.job.proposals.append(made.proposal(symbol, **more))
        await trading.start("after_send")
        await trading.dies()
        await restart(trading)
        assert await settle(made) == {"ACKED": 2}


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_lose_and_double_nothing(
    made: Rig, database_url: Secret, log: Path
) -> None:
    chance = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with idle_worker(job_of(made, database_url), log) as trading:
        for _ in range(200):
            symbols = chance.sample(made.symbols, 3)
            trading.job.proposals[:] = [made.proposal(symbol) for symbol in symbols]
            await trading.start(f"{chance.choice(PLACES)}:{chance.randint(1, 2)}")
            with contextlib.suppress(TimeoutError):  # stopped orders may not reach the place
                await trading.dies(5)
            await trading.kill()
        stored = await made.database.fetchval("SELECT count(*) FROM order_intent")
        await restart(trading)
        await made.until_stored(stored)
        found = await settle(made)
    print(f"200 kills: {found}, {len(made.entries)} at the venue")
    assert found["ACKED"] > 100
