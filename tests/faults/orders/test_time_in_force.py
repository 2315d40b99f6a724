"""Bids that nobody fills are cancelled at the venue at their end, also by the next run."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qts.domain import TICK_TABLES, Secret
from qts.domain import Side as OrderSide
from tests.faults.orders.rig import Rig, worker
from tests.outbox.kit import until

BIDS = 5
SECONDS = 5.0
MARGIN_S = 20.0  # on a busy machine; a cancel takes less than a second


async def submit_bids(made: Rig) -> float:
    """Submit bids far below the market; return the loop's time at which their time is over."""
    for symbol in made.symbols[:BIDS]:
        price = made.proposal(symbol).price
        assert price is not None
        low = TICK_TABLES["upbit-krw"].round(price * Decimal("0.7"), OrderSide.BUY)
        quantity = (Decimal(20_000) / low).quantize(Decimal("0.00000001"))
        await made.submit(symbol=symbol, price=low, quantity=quantity, time_in_force=SECONDS)
    return asyncio.get_running_loop().time() + SECONDS


def states(made: Rig) -> list[Any]:
    return [entry.state for entry in made.entries]


async def reports(made: Rig) -> int:
    found: int = await made.database.fetchval(
        "SELECT count(*) FROM safety_log WHERE code = 'FS093'"
    )
    return found


async def all_cancelled(made: Rig) -> bool:
    return states(made) == ["cancel"] * BIDS


async def all_reported(made: Rig) -> bool:
    return await reports(made) == BIDS


@pytest.mark.parametrize("is_killed", [False, True], ids=["one run", "kill -9 and restart"])
async def test_bids_end_at_the_venue(
    made: Rig, database_url: Secret, log: Path, is_killed: bool
) -> None:
    async with worker(made, database_url, log) as trading:
        due = await submit_bids(made)

        async def all_open() -> bool:
            return states(made) == ["wait"] * BIDS

        await until(all_open, SECONDS)
        if is_killed:
            await trading.kill()
            await trading.start()
            await trading.is_ready()
        await until(lambda: all_cancelled(made), SECONDS + MARGIN_S)
        late_s = asyncio.get_running_loop().time() - due
        assert -1 < late_s < MARGIN_S, "not before its time, and soon after it"
        await until(lambda: all_reported(made), MARGIN_S)
        await made.settle()
    assert await reports(made) == BIDS
