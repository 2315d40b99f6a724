"""Our books beside the venue's: what is unknown is found, what was missed is fetched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from qts.brokers import StreamGap
from qts.database import Database
from qts.domain import ManualClock, RefusedError, Side, SystemClock, UnreachableError
from qts.orders import check_reconciled, resolve_manually, resume_manually
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, START, SYMBOL, Room, room
from tests.outbox.kit import until

D = Decimal


@pytest.mark.parametrize("named", [True, False])
async def test_an_unknown_order_that_was_placed_is_found(
    database: Database, clock: ManualClock, named: bool
) -> None:
    async with room(database, clock, named=named) as floor:
        floor.venue.after = lost_reply
        submitted = await floor.submit()
        await floor.work()
        report = await floor.reconciler.reconcile_now()
        assert report.resolved.accepted == 1
        row = await floor.attempt(submitted.attempt_id)
        assert (row["status"], row["broker_order_id"]) == ("ACKED", "V1")
        assert await floor.suspended() == {}
        assert (await floor.events())[-2:] == ["OrderAccepted", "MarketResumed"]
        assert len(floor.venue.placed) == 1


async def test_an_unknown_order_is_absent_only_when_it_had_its_time(
    floor: Room, clock: ManualClock
) -> None:
    floor.venue.before = lost_reply
    submitted = await floor.submit()
    await floor.work()
    assert (await floor.reconciler.reconcile_now()).resolved.waiting == 1
    assert await floor.suspended() == {SYMBOL: "UNKNOWN"}
    await clock.advance(floor.floor.config.absent_after_s + 1)
    assert (await floor.reconciler.reconcile_now()).resolved.absent == 1
    assert await floor.attempts(submitted.intent_id) == ["ABSENT"]
    assert await floor.intent(submitted.intent_id) == ("CANCELED", "ABSENT")
    assert await floor.suspended() == {}
    assert floor.venue.placed == []


async def test_an_order_that_shows_late_is_not_called_absent(
    database: Database, clock: ManualClock
) -> None:
    async with room(database, clock, named=False) as floor:
        floor.venue.after, floor.venue.lag_s = lost_reply, 5.0
        submitted = await floor.submit()
        await floor.work()
        assert (await floor.reconciler.reconcile_now()).resolved.waiting == 1
        await clock.advance(6)
        assert (await floor.reconciler.reconcile_now()).resolved.accepted == 1
        assert await floor.attempts(submitted.intent_id) == ["ACKED"]


async def test_two_orders_that_fit_ask_a_person(database: Database, clock: ManualClock) -> None:
    async with room(database, clock, named=False) as floor:
        floor.venue.after = lost_reply
        submitted = await floor.submit()
        await floor.work()
        floor.venue.by_hand(SYMBOL, Side.BUY, D(2))
        for _ in range(2):
            assert (await floor.reconciler.reconcile_now()).resolved.ambiguous == 1
        row = await floor.attempt(submitted.attempt_id)
        assert (row["status"], row["needs_person"]) == ("UNKNOWN", True)
        assert "V1, V2" in row["error_message"]
        await clock.advance(60)
        await floor.reconciler.reconcile_now()
        assert await floor.suspended() == {SYMBOL: "UNKNOWN"}
        with pytest.raises(RefusedError, match="resolve them first"):
            await resume_manually(database, "venue", SYMBOL)
        assert submitted.attempt_id is not None
        await resolve_manually(database, floor.bus, submitted.attempt_id, "V1", clock)
        assert await floor.attempts(submitted.intent_id) == ["ACKED"]
        assert await floor.suspended() == {}


async def test_a_person_may_say_that_it_never_came(floor: Room) -> None:
    floor.venue.before = lost_reply
    submitted = await floor.submit()
    await floor.work()
    assert submitted.attempt_id is not None
    await resolve_manually(floor.database, floor.bus, submitted.attempt_id, None, floor.clock)
    assert await floor.attempts(submitted.intent_id) == ["ABSENT"]
    with pytest.raises(RefusedError, match="is ABSENT; only an UNKNOWN one"):
        await resolve_manually(floor.database, floor.bus, submitted.attempt_id, "V9")
    with pytest.raises(RefusedError, match="no attempt"):
        await resolve_manually(floor.database, floor.bus, uuid4(), None)


async def test_a_persons_choice_must_fit(floor: Room) -> None:
    taken = await floor.order()
    other = floor.venue.by_hand("KRW-ETH", Side.BUY, D(2))
    await floor.reconciler.reconcile_now()
    floor.venue.before = lost_reply
    attempt_id = (await floor.submit()).attempt_id
    await floor.work()
    assert isinstance(attempt_id, UUID)
    with pytest.raises(RefusedError, match="belongs to attempt"):
        await resolve_manually(floor.database, floor.bus, attempt_id, taken)
    with pytest.raises(RefusedError, match="is BUY KRW-ETH; the attempt was BUY KRW-BTC"):
        await resolve_manually(floor.database, floor.bus, attempt_id, other)


async def test_what_a_dead_sender_left_is_looked_for_after_its_time(
    floor: Room, clock: ManualClock
) -> None:
    submitted = await floor.submit()
    await floor.database.execute(
        "UPDATE order_attempt SET status = 'SENT', sent_at = $1", clock.now()
    )
    await floor.reconciler.reconcile_now()
    assert await floor.attempts(submitted.intent_id) == ["SENT"]  # somebody may be at it
    await clock.advance(7)
    await floor.reconciler.reconcile_now()
    assert await floor.attempts(submitted.intent_id) == ["UNKNOWN"]


async def test_an_order_of_an_attempt_given_up_is_counted_and_raises_an_alarm(
    floor: Room, clock: ManualClock
) -> None:
    floor.venue.after, floor.venue.lag_s = lost_reply, 3600
    submitted = await floor.submit()
    await floor.work()
    await clock.advance(floor.floor.config.absent_after_s + 1)
    await floor.reconciler.reconcile_now()
    assert await floor.attempts(submitted.intent_id) == ["ABSENT"]
    floor.venue.lag_s = 0
    floor.venue.trade("V1", D(2), PRICE)
    await floor.reconciler.reconcile_now()
    assert (await floor.position())[0] == 2
    assert (await floor.fail_safe.now()).state == "FAIL"


async def test_missed_fills_are_fetched(floor: Room) -> None:
    name = await floor.order()
    floor.venue.trade(name, D(1), PRICE)
    report = await floor.reconciler.reconcile_now()
    assert (report.fills, report.differences) == (1, ())
    assert (await floor.position())[0] == 1
    assert (await floor.reconciler.reconcile_now()).fills == 0


async def test_fills_of_an_old_open_order_are_fetched_too(floor: Room, clock: ManualClock) -> None:
    name = await floor.order()
    fill = floor.venue.trade(name, D(1), PRICE)
    for _ in range(3):
        await clock.advance(3600)
        floor.venue.by_hand("KRW-ETH", Side.BUY, D(1))
        await floor.reconciler.reconcile_now()
    assert (await floor.position())[0] == fill.quantity


async def test_the_books_agree_after_a_look(floor: Room) -> None:
    name = await floor.order()
    floor.venue.trade(name, D(1), PRICE)
    before = await check_reconciled(floor.floor, START)
    assert (before.orders, before.fills, before.positions) == (False, False, False)
    await floor.reconciler.reconcile_now()
    after = await check_reconciled(floor.floor, START)
    assert after
    assert after.differences == ()


async def test_an_unknown_attempt_keeps_the_books_from_agreeing(floor: Room) -> None:
    floor.venue.before = lost_reply
    await floor.submit()
    await floor.work()
    found = await check_reconciled(floor.floor, START)
    assert not found
    assert found.differences == ("1 attempts with an unknown outcome",)


async def test_a_failed_start_allows_no_trading(database: Database, clock: ManualClock) -> None:
    async with room(database, clock) as floor:
        floor.reconciler._failures = 3
        floor.venue.is_away = True
        with pytest.raises(UnreachableError):
            await floor.reconciler.reconcile_now()
        assert not floor.reconciler.is_reconciled()
        floor.venue.is_away = False
        await floor.reconciler.reconcile_now()
        assert floor.reconciler.is_reconciled()


async def test_looks_that_keep_failing_stop_trading(floor: Room) -> None:
    floor.venue.is_away = True
    for allowed in (True, True, False):
        with pytest.raises(UnreachableError):
            await floor.reconciler.reconcile_now()
        assert floor.reconciler.is_reconciled() is allowed


@asynccontextmanager
async def _running(floor: Room) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(floor.reconciler.run()),
        asyncio.create_task(floor.reconciler.follow_reports()),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


# As quick as a busy machine allows: an order it holds up for longer than this does not leave.
QUICK: dict[str, Any] = {
    "place_timeout_s": 1.0,
    "send_within_s": 2.0,
    "absent_after_s": 3.1,
    "resolve_every_s": 0.05,
}


async def test_a_gap_in_the_stream_is_filled(database: Database) -> None:
    async with room(database, SystemClock(), **QUICK) as floor:
        name = await floor.order()
        async with _running(floor):
            floor.venue.trade(name, D(1), PRICE)  # its notice never came
            await floor.venue.stream.put(StreamGap("the connection ended"))
            await until(lambda: _holds(floor, D(1)))
            await floor.venue.stream.put(floor.venue.trade(name, D(1), PRICE))
            await until(lambda: _holds(floor, D(2)))
            await until(lambda: _may_trade(floor))


async def test_unknown_outcomes_are_found_without_being_asked_for(database: Database) -> None:
    async with room(database, SystemClock(), **QUICK) as floor, _running(floor):
        floor.venue.before = lost_reply
        absent = await floor.submit(symbol="KRW-ETH")
        await floor.work()
        floor.venue.before, floor.venue.after = (lambda _request: None), lost_reply
        placed = await floor.submit()
        await floor.work()
        await until(lambda: _is(floor, placed.intent_id, "ACKED"))
        await until(lambda: _is(floor, absent.intent_id, "ABSENT"))
        await until(lambda: _all_active(floor))


async def _holds(floor: Room, quantity: Decimal) -> bool:
    return (await floor.position())[0] == quantity


async def _may_trade(floor: Room) -> bool:
    return floor.reconciler.is_reconciled()


async def _all_active(floor: Room) -> bool:
    return await floor.suspended() == {}


async def _is(floor: Room, intent_id: UUID, state: str) -> bool:
    return await floor.attempts(intent_id) == [state]
