"""A venue that fails in every way it can: what it did is found out, never guessed or repeated."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import aiohttp
import pytest

from qts.database import Database
from qts.domain import Secret
from qts.risk import FailSafe, SafetyState
from tests.accounts import UPBIT
from tests.faults.orders.rig import Rig, rig, worker
from tests.outbox.kit import until
from tests.simulators.clients import Upbit


@pytest.mark.parametrize("kind", ["drop_reply", "unknown", "cut", "slow"])
async def test_a_lost_answer_is_looked_up(
    made: Rig, database_url: Secret, log: Path, kind: str
) -> None:
    """It was placed; the answer breaks off, is an HTTP 500, or comes too late."""
    made.fault(kind, count=3, seconds=3.0)
    async with worker(made, database_url, log):
        await made.submit(5)
        await made.settle()
    assert await made.states() == {"ACKED": 5}
    assert len(made.entries) == 5


@pytest.mark.parametrize("kind", ["error", "drop_request"])
async def test_an_order_that_never_came_is_absent_and_not_sent_again(
    made: Rig, database_url: Secret, log: Path, kind: str
) -> None:
    """HTTP 500 or a cut connection without an order: only reconciliation can find out."""
    made.fault(kind, count=3)
    async with worker(made, database_url, log):
        await made.submit(5)
        await made.settle()
        await until(lambda: _none_suspended(made), 60)  # resumed after ABSENT is committed
    assert await made.states() == {"ACKED": 2, "ABSENT": 3}
    assert len(made.entries) == 2


async def _none_suspended(made: Rig) -> bool:
    suspended = await made.database.fetchval(
        "SELECT count(*) FROM market_state WHERE trade_status = 'SUSPENDED'"
    )
    return bool(suspended == 0)


async def test_too_many_requests_pass_on_to_new_attempts(
    made: Rig, database_url: Secret, log: Path
) -> None:
    made.fault("limit", count=4)
    async with worker(made, database_url, log):
        await made.submit(5)
        await made.settle()
    assert await made.states() == {"ACKED": 5}
    assert len(made.entries) == 5
    throttled = [s for each in (await made.attempts()).values() for s, _ in each if s != "ACKED"]
    assert throttled.count("THROTTLED") >= 4


async def test_being_shut_out_stops_everything(
    database: Database, database_url: Secret, log: Path
) -> None:
    """Another program on the same key asks too often, and the venue blocks the key."""
    async with (
        rig(database, order_second=1, block_after=1, block_s=30) as made,
        worker(made, database_url, log),
        aiohttp.ClientSession() as http,
    ):
        other = Upbit(made.simulator, http)
        replies = [await other.order(market="KRW-NONE") for _ in range(4)]
        assert replies[-1].status == 418
        await made.submit(6)
        await until(lambda: _is_shut(made), 60)
        placed = len(made.entries)
        later = await made.submit(3)
        assert {one.stopped for one in later} == {"KILL_SWITCH"}
        await until(lambda: _no_commands(made), 60)
        assert len(made.entries) == placed
    switches = await made.kill_switch.all()
    assert not switches["account"].enabled
    safety = await FailSafe(database, UPBIT).now()
    assert (safety.state, safety.code) == (SafetyState.LOCKDOWN, "FS110")


@pytest.mark.parametrize("kind", ["lose_fills", "duplicate_fills", "reorder_fills"])
async def test_fill_notices_that_go_wrong_change_no_position(
    made: Rig, database_url: Secret, log: Path, kind: str
) -> None:
    made.fault(kind, path="", method="")
    async with worker(made, database_url, log):
        await made.submit(8)
        await made.settle()
    assert await made.states() == {"ACKED": 8}
    assert any(entry.order.filled for entry in made.entries)


async def test_a_stream_that_is_cut_loses_no_fill(
    made: Rig, database_url: Secret, log: Path
) -> None:
    async with worker(made, database_url, log):
        for _ in range(4):
            await made.submit(3)
            made.simulator.drop_streams()
        await made.settle()
    assert await made.states() == {"ACKED": 12}


async def test_cancelled_orders_are_as_the_venue_says(
    made: Rig, database_url: Secret, log: Path
) -> None:
    """Far below the market, so that they rest until they are cancelled."""
    async with worker(made, database_url, log):
        resting = made.proposal(made.symbols[0])
        assert resting.price is not None
        low = resting.price - resting.price % 100_000 - 1_000_000
        quantity = (Decimal(20_000) / low).quantize(Decimal("0.00000001"))
        made_orders = await made.submit(3, symbol=made.symbols[0], price=low, quantity=quantity)
        await until(lambda: _count(made, "ACKED", 3), 60)
        for one in made_orders:
            assert await made.manager.cancel(one.intent_id)
        await until(lambda: _all_cancelled(made), 60)
        await made.settle()


async def _is_shut(made: Rig) -> bool:
    return not (await made.kill_switch.all())["account"].enabled


async def _no_commands(made: Rig) -> bool:
    return not await made.database.fetchval(
        "SELECT count(*) FROM order_attempt WHERE status IN ('PREPARED', 'SENT')"
    )


async def _count(made: Rig, state: str, count: int) -> bool:
    return (await made.states()).get(state) == count


async def _all_cancelled(made: Rig) -> bool:
    return bool(made.entries) and all(entry.state == "cancel" for entry in made.entries)
