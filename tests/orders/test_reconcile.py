"""Our books beside the venue's: what is unknown is found, what was missed is fetched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from qts.brokers import StreamGap
from qts.database import Database
from qts.domain import ManualClock, RefusedError, Side, SystemClock, UnreachableError
from qts.orders import check_reconciled, resolve_manually, resume_manually
from qts.orders.resolve import resolve_unknown
from tests.accounts import VENUE
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, START, SYMBOL, OrderKit, open_kit
from tests.outbox.kit import until

D = Decimal


@pytest.mark.parametrize("named", [True, False])
async def test_an_unknown_order_that_was_placed_is_found(
    database: Database, clock: ManualClock, named: bool
) -> None:
    async with open_kit(database, clock, named=named) as kit:
        kit.venue.after = lost_reply
        submitted = await kit.submit()
        await kit.work()
        report = await kit.reconciler.reconcile_now()
        assert report.resolved.accepted == 1
        row = await kit.attempt(submitted.attempt_id)
        assert (row["status"], row["broker_order_id"]) == ("ACKED", "V1")
        assert await kit.suspended() == {}
        assert (await kit.events())[-2:] == ["OrderAccepted", "MarketResumed"]
        assert len(kit.venue.placed) == 1


async def test_an_unknown_order_is_absent_only_when_it_had_its_time(
    kit: OrderKit, clock: ManualClock
) -> None:
    kit.venue.before = lost_reply
    submitted = await kit.submit()
    await kit.work()
    assert (await kit.reconciler.reconcile_now()).resolved.waiting == 1
    assert await kit.suspended() == {SYMBOL: "UNKNOWN"}
    await clock.advance(kit.context.config.absent_after_s + 1)
    assert (await kit.reconciler.reconcile_now()).resolved.absent == 1
    assert await kit.attempts(submitted.intent_id) == ["ABSENT"]
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "ABSENT")
    assert await kit.suspended() == {}
    assert kit.venue.placed == []


async def test_an_order_that_shows_late_is_not_called_absent(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.after, kit.venue.lag_s = lost_reply, 5.0
        submitted = await kit.submit()
        await kit.work()
        assert (await kit.reconciler.reconcile_now()).resolved.waiting == 1
        await clock.advance(6)
        assert (await kit.reconciler.reconcile_now()).resolved.accepted == 1
        assert await kit.attempts(submitted.intent_id) == ["ACKED"]


async def test_a_clock_that_is_set_forward_makes_no_order_absent(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=True) as kit:
        kit.venue.after, kit.venue.lag_s = lost_reply, 300.0
        submitted = await kit.submit()
        await kit.work()
        assert (await kit.reconciler.reconcile_now()).resolved.waiting == 1
        clock.set_wall(clock.now() + timedelta(seconds=200))
        assert (await kit.reconciler.reconcile_now()).resolved.waiting == 1
        assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
        kit.venue.lag_s = 0.0
        assert (await kit.reconciler.reconcile_now()).resolved.accepted == 1
        assert kit.context.first_looks.keys() == {submitted.attempt_id}
        await kit.reconciler.reconcile_now()
        assert kit.context.first_looks == {}


async def test_two_orders_that_fit_ask_a_person(database: Database, clock: ManualClock) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.after = lost_reply
        submitted = await kit.submit()
        await kit.work()
        kit.venue.by_hand(SYMBOL, Side.BUY, D(2))
        for _ in range(2):
            assert (await kit.reconciler.reconcile_now()).resolved.ambiguous == 1
        row = await kit.attempt(submitted.attempt_id)
        assert (row["status"], row["needs_person"]) == ("UNKNOWN", True)
        assert "any of the orders V1 of 01:00:00, V2 of 01:00:00" in row["error_message"]
        assert f"qts orders resolve {submitted.attempt_id} --as" in row["error_message"]
        await clock.advance(60)
        await kit.reconciler.reconcile_now()
        assert await kit.suspended() == {SYMBOL: "UNKNOWN"}
        with pytest.raises(RefusedError, match="resolve them first"):
            await resume_manually(database, VENUE, SYMBOL)
        assert submitted.attempt_id is not None
        await resolve_manually(database, kit.bus, submitted.attempt_id, "V1", clock)
        assert await kit.attempts(submitted.intent_id) == ["ACKED"]
        assert await kit.suspended() == {}


async def test_a_person_may_say_that_it_never_came(kit: OrderKit) -> None:
    kit.venue.before = lost_reply
    submitted = await kit.submit()
    await kit.work()
    assert submitted.attempt_id is not None
    await resolve_manually(kit.database, kit.bus, submitted.attempt_id, None, kit.clock)
    assert await kit.attempts(submitted.intent_id) == ["ABSENT"]
    with pytest.raises(RefusedError, match="is ABSENT; only an UNKNOWN one"):
        await resolve_manually(kit.database, kit.bus, submitted.attempt_id, None)
    with pytest.raises(RefusedError, match="has no order V9 of venue"):
        await resolve_manually(kit.database, kit.bus, submitted.attempt_id, "V9")
    with pytest.raises(RefusedError, match="no attempt"):
        await resolve_manually(kit.database, kit.bus, uuid4(), None)


async def test_a_persons_choice_must_fit(kit: OrderKit) -> None:
    taken = await kit.order()
    other = kit.venue.by_hand("KRW-ETH", Side.BUY, D(2))
    await kit.reconciler.reconcile_now()
    kit.venue.before = lost_reply
    attempt_id = (await kit.submit()).attempt_id
    await kit.work()
    assert isinstance(attempt_id, UUID)
    with pytest.raises(RefusedError, match="belongs to attempt"):
        await resolve_manually(kit.database, kit.bus, attempt_id, taken)
    with pytest.raises(RefusedError, match="is BUY KRW-ETH; the attempt was BUY KRW-BTC"):
        await resolve_manually(kit.database, kit.bus, attempt_id, other)


async def test_what_a_dead_sender_left_is_looked_for_after_its_time(
    kit: OrderKit, clock: ManualClock
) -> None:
    submitted = await kit.submit()
    await kit.database.execute(
        "UPDATE order_attempt SET status = 'SENT', sent_at = $1", clock.now()
    )
    await kit.reconciler.reconcile_now()
    assert await kit.attempts(submitted.intent_id) == ["SENT"]  # somebody may be at it
    await clock.advance(7)
    await kit.reconciler.reconcile_now()
    assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]


async def test_an_order_of_an_attempt_given_up_is_counted_and_raises_an_alarm(
    kit: OrderKit, clock: ManualClock
) -> None:
    kit.venue.after, kit.venue.lag_s = lost_reply, 3600
    submitted = await kit.submit()
    await kit.work()
    await clock.advance(kit.context.config.absent_after_s + 1)
    await kit.reconciler.reconcile_now()
    assert await kit.attempts(submitted.intent_id) == ["ABSENT"]
    kit.venue.lag_s = 0
    kit.venue.trade("V1", D(2), PRICE)
    await kit.reconciler.reconcile_now()
    assert (await kit.position())[0] == 2
    safety = await kit.fail_safe.now()
    assert (safety.state, safety.code) == ("FAIL", "FS043")
    assert f"qts orders resolve {submitted.attempt_id} --as V1" in safety.message


async def test_missed_fills_are_fetched(kit: OrderKit) -> None:
    name = await kit.order()
    kit.venue.trade(name, D(1), PRICE)
    report = await kit.reconciler.reconcile_now()
    assert (report.fills, report.differences) == (1, ())
    assert (await kit.position())[0] == 1
    assert (await kit.reconciler.reconcile_now()).fills == 0


async def test_fills_of_an_old_open_order_are_fetched_too(
    kit: OrderKit, clock: ManualClock
) -> None:
    name = await kit.order()
    fill = kit.venue.trade(name, D(1), PRICE)
    for _ in range(3):
        await clock.advance(3600)
        kit.venue.by_hand("KRW-ETH", Side.BUY, D(1))
        await kit.reconciler.reconcile_now()
    assert (await kit.position())[0] == fill.quantity


async def test_the_books_agree_after_a_look(kit: OrderKit) -> None:
    name = await kit.order()
    kit.venue.trade(name, D(1), PRICE)
    before = await check_reconciled(kit.context, START)
    assert (before.orders, before.fills, before.positions) == (False, False, False)
    await kit.reconciler.reconcile_now()
    after = await check_reconciled(kit.context, START)
    assert after
    assert after.differences == ()


async def test_an_unknown_attempt_keeps_the_books_from_agreeing(kit: OrderKit) -> None:
    kit.venue.before = lost_reply
    await kit.submit()
    await kit.work()
    found = await check_reconciled(kit.context, START)
    assert not found
    assert found.differences == ("1 attempts with an unknown outcome",)


async def test_a_failed_start_allows_no_trading(database: Database, clock: ManualClock) -> None:
    async with open_kit(database, clock) as kit:
        kit.reconciler._failures = 3
        kit.venue.is_away = True
        with pytest.raises(UnreachableError):
            await kit.reconciler.reconcile_now()
        assert not kit.reconciler.is_reconciled()
        kit.venue.is_away = False
        await kit.reconciler.reconcile_now()
        assert kit.reconciler.is_reconciled()


async def test_looks_that_keep_failing_stop_trading(kit: OrderKit) -> None:
    kit.venue.is_away = True
    for allowed in (True, True, False):
        with pytest.raises(UnreachableError):
            await kit.reconciler.reconcile_now()
        assert kit.reconciler.is_reconciled() is allowed


@asynccontextmanager
async def _running(kit: OrderKit) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(kit.reconciler.run()),
        asyncio.create_task(kit.reconciler.follow_reports()),
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
    async with open_kit(database, SystemClock(), **QUICK) as kit:
        name = await kit.order()
        async with _running(kit):
            kit.venue.trade(name, D(1), PRICE)  # its notice never came
            await kit.venue.stream.put(StreamGap("the connection ended"))
            await until(lambda: _holds(kit, D(1)))
            await kit.venue.stream.put(kit.venue.trade(name, D(1), PRICE))
            await until(lambda: _holds(kit, D(2)))
            await until(lambda: _may_trade(kit))


async def test_unknown_outcomes_are_found_without_being_asked_for(database: Database) -> None:
    async with open_kit(database, SystemClock(), **QUICK) as kit, _running(kit):
        kit.venue.before = lost_reply
        absent = await kit.submit(symbol="KRW-ETH")
        await kit.work()
        kit.venue.before, kit.venue.after = (lambda _request: None), lost_reply
        placed = await kit.submit()
        await kit.work()
        await until(lambda: _is(kit, placed.intent_id, "ACKED"))
        await until(lambda: _is(kit, absent.intent_id, "ABSENT"))
        await until(lambda: _all_active(kit))


async def _holds(kit: OrderKit, quantity: Decimal) -> bool:
    return (await kit.position())[0] == quantity


async def _may_trade(kit: OrderKit) -> bool:
    return kit.reconciler.is_reconciled()


async def _all_active(kit: OrderKit) -> bool:
    return await kit.suspended() == {}


async def _is(kit: OrderKit, intent_id: UUID, state: str) -> bool:
    return await kit.attempts(intent_id) == [state]


async def _overdue_unplaced(kit: OrderKit, clock: ManualClock) -> UUID:
    """Return an attempt that never reached the venue, after its time."""
    kit.venue.before = lost_reply
    submitted = await kit.submit()
    await kit.work()
    await clock.advance(kit.context.config.absent_after_s + 1)
    assert submitted.attempt_id is not None
    return submitted.attempt_id


async def test_an_order_of_another_time_keeps_an_attempt_from_being_absent(
    database: Database, clock: ManualClock
) -> None:
    """The venue dates it an hour ahead: it may be the attempt's all the same."""
    async with open_kit(database, clock, named=False) as kit:
        attempt_id = await _overdue_unplaced(kit, clock)
        order_id = kit.venue.by_hand(SYMBOL, Side.BUY, D(2))
        kit.venue._change(order_id, placed_at=clock.now() - timedelta(hours=1))
        for _ in range(2):
            assert (await kit.reconciler.reconcile_now()).resolved.ambiguous == 1
        row = await kit.attempt(attempt_id)
        assert (row["status"], row["needs_person"]) == ("UNKNOWN", True)
        assert f"may be order {order_id} of 00:00:16" in row["error_message"]
        await resolve_manually(database, kit.bus, attempt_id, order_id, clock)
        assert (await kit.attempt(attempt_id))["status"] == "ACKED"


async def test_an_order_known_before_the_attempt_is_not_the_attempts(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.by_hand(SYMBOL, Side.BUY, D(2))
        await kit.reconciler.reconcile_now()
        attempt_id = await _overdue_unplaced(kit, clock)
        assert (await kit.reconciler.reconcile_now()).resolved.absent == 1
        assert (await kit.attempt(attempt_id))["status"] == "ABSENT"


async def test_a_holding_that_grew_keeps_an_attempt_from_being_absent(
    kit: OrderKit, clock: ManualClock
) -> None:
    attempt_id = await _overdue_unplaced(kit, clock)
    kit.venue.external[SYMBOL] = D(2)
    assert (await kit.reconciler.reconcile_now()).resolved.waiting == 1
    assert (await kit.reconciler.reconcile_now()).resolved.ambiguous == 1
    row = await kit.attempt(attempt_id)
    assert (row["status"], row["needs_person"]) == ("UNKNOWN", True)
    assert "differs from the position by 2" in row["error_message"]
    kit.venue.external.clear()
    assert (await kit.reconciler.reconcile_now()).resolved.absent == 1


async def test_fills_on_their_way_to_the_ledger_do_not_ask_a_person(
    kit: OrderKit, clock: ManualClock
) -> None:
    """The symbol trades on: each look finds a fill that the ledger gets only after it."""
    order_id = await kit.order(quantity=D(8))
    attempt_id = await _overdue_unplaced(kit, clock)
    for _ in range(3):
        fill = kit.venue.trade(order_id, D(2), PRICE)
        assert (await resolve_unknown(kit.context)).waiting == 1
        assert await kit.context.ledger.record_fill(fill)
    assert not (await kit.attempt(attempt_id))["needs_person"]
    assert (await resolve_unknown(kit.context)).absent == 1


async def test_an_order_with_our_id_is_found_beside_a_rival(
    kit: OrderKit, clock: ManualClock
) -> None:
    kit.venue.after = lost_reply
    submitted = await kit.submit()
    await kit.work()
    await kit.submit()
    await kit.database.execute(
        "UPDATE order_attempt SET status = 'SENT', sent_at = $1 WHERE status = 'PREPARED'",
        clock.now(),
    )
    assert (await kit.reconciler.reconcile_now()).resolved.accepted == 1
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]


async def test_an_order_that_fits_two_unknown_attempts_belongs_to_neither(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.before = lost_reply
        await kit.submit()
        await kit.work()
        await kit.submit()
        await kit.database.execute(
            "UPDATE order_attempt SET status = 'SENT', sent_at = $1 WHERE status = 'PREPARED'",
            clock.now(),
        )
        kit.venue.by_hand(SYMBOL, Side.BUY, D(2))
        assert (await kit.reconciler.reconcile_now()).resolved.accepted == 0
        await clock.advance(kit.context.config.absent_after_s + 1)
        assert (await kit.reconciler.reconcile_now()).resolved.ambiguous == 2
