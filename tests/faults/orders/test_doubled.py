"""A lost request or reply while the clocks differ: one order at the venue, known as ours.

A strategy that buys again as soon as its order is absent is the worst case: an order that is
called absent and was placed is bought twice. The venue's own record is the judge.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from qts.database import Database
from qts.domain import OrderType
from qts.orders import SubmitResult
from qts.outbox import PostgresBus
from tests.conformance.venues import NO_SURGES, SimulatedMarket, inject_fault, kis, upbit
from tests.orders.kit import STREAMS, OrderKit

OPEN: dict[str, Callable[..., AbstractAsyncContextManager[SimulatedMarket]]] = {
    "kis": kis,
    "upbit": upbit,
}
SKEWS = (-90.0, -3.7, 3.7, 90.0)
FIRST_SEED = int(os.environ.get("QTS_SEED") or 1)
FAULTS = ("drop_reply", "drop_request", "slow", "unknown", "cut")
TIMES: dict[str, Any] = {"place_timeout_s": 0.5, "send_within_s": 1.0, "absent_after_s": 15.0}


@asynccontextmanager
async def trading(
    name: str, skew_s: float, database: Database, folder: Path
) -> AsyncIterator[tuple[OrderKit, SimulatedMarket]]:
    market = msgspec.structs.replace(NO_SURGES, skew_s=skew_s)
    async with (
        PostgresBus.open(database, STREAMS) as bus,
        OPEN[name](database, folder, market=market) as venue,
    ):
        kit = OrderKit(database, bus, cast("Any", venue.broker), venue.clock, **TIMES)
        await kit.open()
        yield kit, venue


async def buy_until_acknowledged(
    kit: OrderKit, venue: SimulatedMarket, chance: random.Random
) -> None:
    """Submit, and again whenever the order is absent, until one is acknowledged."""
    order: dict[str, Any] = {"symbol": venue.symbol, "quantity": venue.quantity}
    if chance.random() < 0.5:
        order |= {"type": OrderType.MARKET, "price": None}
    else:
        order["price"] = venue.quote()[chance.randrange(2)]
    submitted = await kit.submit(**order)
    for _ in range(120):
        await kit.work()
        await venue.clock.advance(chance.uniform(0.3, 3.0))
        venue.simulator.catch_up()
        await kit.reconciler.reconcile_now()
        (state,) = await kit.attempts(submitted.intent_id)
        if state == "ACKED":
            return
        assert state in ("UNKNOWN", "ABSENT"), state
        if state == "ABSENT":
            submitted = await again(kit, order)
    raise AssertionError(f"{state} after two minutes")


async def again(kit: OrderKit, order: dict[str, Any]) -> SubmitResult:
    await kit.work()
    return await kit.submit(**order)


async def try_orders(
    kit: OrderKit, venue: SimulatedMarket, chance: random.Random, count: int
) -> None:
    for number in range(1, count + 1):
        kind = chance.choice(FAULTS)
        inject_fault(venue, kind, seconds=3600)  # slow: on a clock that does not move
        await buy_until_acknowledged(kit, venue, chance)
        venue.simulator.faults.clear()
        placed = await venue.record()
        rows = await kit.database.fetch("SELECT broker_order_id, origin FROM broker_order")
        assert {row["broker_order_id"]: row["origin"] for row in rows} == dict.fromkeys(
            placed, "OURS"
        ), kind
        assert len(placed) == number, f"{kind}: {len(placed)} orders at the venue for {number}"
    await kit.reconciler.reconcile_now()
    filled = sum(record.filled for record in (await venue.record()).values())
    assert (await kit.position(venue.symbol))[0] == filled
    assert (await kit.fail_safe.now()).state == "NORMAL"


@pytest.mark.parametrize("skew_s", SKEWS)
@pytest.mark.parametrize("name", OPEN)
async def test_one_order_is_placed_whatever_is_lost(
    database: Database, tmp_path: Path, name: str, skew_s: float
) -> None:
    async with trading(name, skew_s, database, tmp_path) as (kit, venue):
        await try_orders(kit, venue, random.Random(f"{name} {skew_s}"), 4)  # noqa: S311


async def test_an_order_is_found_after_the_clock_was_set(
    database: Database, tmp_path: Path
) -> None:
    async with trading("kis", -3.7, database, tmp_path) as (kit, venue):
        await venue.broker.account()
        inject_fault(venue, "drop_reply")
        submitted = await kit.submit(
            symbol=venue.symbol, quantity=venue.quantity, price=venue.quote()[1]
        )
        await kit.work()
        assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
        venue.simulator.set_skew(0.0)
        for _ in range(15):
            await venue.broker.account()
        await kit.reconciler.reconcile_now()
        assert await kit.attempts(submitted.intent_id) == ["ACKED"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 200))
async def test_one_order_is_placed_two_hundred_times(
    database: Database, tmp_path: Path, seed: int
) -> None:
    """The seed chooses the venue, the skew and the faults of two orders in a row."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    name, skew_s = chance.choice(tuple(OPEN)), chance.choice((-90.0, -3.0, 3.0, 90.0))
    print(f"seed {seed}: {name}, skew {skew_s:g} s")
    async with trading(name, skew_s, database, tmp_path) as (kit, venue):
        await try_orders(kit, venue, chance, 2)
