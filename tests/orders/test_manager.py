"""An approved order is a durable fact once, whoever says it how often."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from uuid import uuid4

import msgspec
import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import IntentType, ManualClock, OrderRequest, OrderType, RefusedError, Secret, Side
from qts.orders import SubmitResult, signal_id_for
from qts.risk import OrderProposal
from tests.faults.proxy import CommitProxy
from tests.orders.kit import START, SYMBOL, OrderKit, approved, open_kit

COMMANDS = "SELECT count(*) FROM outbox_event WHERE stream LIKE 'everbit.trade.%'"


async def test_an_order_is_written_with_its_command_and_nothing_leaves(kit: OrderKit) -> None:
    submitted = await kit.submit()
    row = await kit.attempt(submitted.attempt_id)
    assert (row["status"], row["attempt_no"]) == ("PREPARED", 1)
    assert await kit.intent(submitted.intent_id) == ("CREATED", "")
    event = await kit.database.fetchrow(
        "SELECT * FROM outbox_event WHERE stream LIKE 'everbit.trade.%'"
    )
    assert event is not None
    assert (event["event_type"], event["aggregate_id"]) == ("CreateOrderAttempt", SYMBOL)
    assert event["payload_json"]["payload"] == {"orderAttemptId": str(submitted.attempt_id)}
    assert kit.venue.placed == []


async def test_the_frozen_request_carries_the_identifier_of_its_row(kit: OrderKit) -> None:
    row = await kit.attempt((await kit.submit()).attempt_id)
    request = msgspec.convert(row["request_json"], OrderRequest)
    assert request.client_order_id == row["identifier"]
    assert (request.quantity, request.price) == (Decimal(2), Decimal(100))


async def test_the_same_signal_a_thousand_times_at_once_is_one_order(kit: OrderKit) -> None:
    order = approved(kit.clock)
    answers = await asyncio.gather(*(kit.desk.submit(order) for _ in range(1000)))
    assert sum(answer.is_new for answer in answers) == 1
    assert len({(answer.intent_id, answer.attempt_id) for answer in answers}) == 1
    assert await kit.database.fetchval("SELECT count(*) FROM order_attempt") == 1
    assert await kit.database.fetchval(COMMANDS) == 1
    await kit.work()
    assert len(kit.venue.placed) == 1


async def test_deciding_the_same_candle_again_orders_nothing_more(kit: OrderKit) -> None:
    name = signal_id_for("scalper", SYMBOL, Side.BUY, START)
    first = await kit.submit(signal_id=name)
    again = await kit.submit(
        signal_id=signal_id_for("scalper", SYMBOL, Side.BUY, START), quantity=Decimal(3)
    )
    assert (again.intent_id, again.is_new) == (first.intent_id, False)
    other = signal_id_for("scalper", SYMBOL, Side.BUY, START + timedelta(minutes=1))
    assert (await kit.submit(signal_id=other)).is_new


async def test_one_signal_has_one_intent_of_each_type(kit: OrderKit) -> None:
    name = uuid4()
    entry = await kit.submit(signal_id=name)
    leaving = await kit.submit(signal_id=name, side=Side.SELL, intent_type=IntentType.EXIT_TP)
    assert leaving.is_new
    assert leaving.intent_id != entry.intent_id


async def test_a_signal_id_used_for_another_market_is_refused(kit: OrderKit) -> None:
    name = uuid4()
    await kit.submit(signal_id=name)
    with pytest.raises(RefusedError, match=f"{name} already stands for BUY KRW-BTC"):
        await kit.submit(signal_id=name, symbol="KRW-ETH")


async def test_what_the_gate_did_not_approve_is_refused(kit: OrderKit) -> None:
    @dataclass
    class LooksApproved:
        proposal: OrderProposal
        at: object

    real = approved(kit.clock)
    with pytest.raises(RefusedError, match="takes an ApprovedOrder"):
        await kit.desk.submit(LooksApproved(real.proposal, real.at))  # type: ignore[arg-type]
    assert await kit.database.fetchval("SELECT count(*) FROM order_intent") == 0


async def test_switched_off_the_intent_is_recorded_and_nothing_is_attempted(kit: OrderKit) -> None:
    await kit.kill.set(False, "tests", "enough")
    submitted = await kit.submit()
    assert (submitted.attempt_id, submitted.stopped) == (None, "KILL_SWITCH")
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "KILL_SWITCH")
    assert await kit.work() == []
    await kit.kill.set(True, "tests")
    again = await kit.work_later()
    assert (again, kit.venue.placed) == ([], [])


async def test_a_cancel_before_it_left_sends_nothing(kit: OrderKit) -> None:
    submitted = await kit.submit()
    assert await kit.desk.cancel(submitted.intent_id)
    await kit.work()
    assert kit.venue.placed == []
    assert await kit.attempts(submitted.intent_id) == ["SUSPENDED"]
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "CANCELLED")
    assert not await kit.desk.cancel(submitted.intent_id)


async def test_cancelling_what_is_not_there_is_refused(kit: OrderKit) -> None:
    with pytest.raises(RefusedError, match="no order"):
        await kit.desk.cancel(uuid4())


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_in_doubt_is_looked_up_and_not_doubled(
    database: Database, database_url: Secret, clock: ManualClock, when: str
) -> None:
    async with (
        CommitProxy.to(database_url) as proxy,
        Database.open(proxy.url, DatabaseConfig(pool_min=1, pool_max=3)) as through,
        open_kit(through, clock) as made,
    ):
        order = approved(clock)
        proxy.spoil("before" if when == "before" else "after", b"CreateOrderAttempt")
        submitting = asyncio.create_task(made.desk.submit(order))
        while not submitting.done():
            await clock.advance(1)
            await asyncio.sleep(0.01)
        submitted: SubmitResult = submitting.result()
        assert proxy.cut == 1
        assert submitted.attempt_id is not None
        assert submitted.is_new  # nobody else has heard the signal
        await made.work()
        assert len(made.venue.placed) == 1
    assert await database.fetchval("SELECT count(*) FROM order_intent") == 1


async def test_a_market_order_has_no_price(kit: OrderKit) -> None:
    submitted = await kit.submit(type=OrderType.MARKET, price=None)
    row = await kit.attempt(submitted.attempt_id)
    assert row["request_json"]["price"] is None
