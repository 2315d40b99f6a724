"""From a command to the venue: once, in time, and with the right name for every end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from qts.brokers import VenueBlockedError
from qts.database import Database
from qts.domain import (
    Clock,
    IntentType,
    ManualClock,
    OrderRequest,
    OrderState,
    OutcomeUnknownError,
    RefusedError,
    Side,
    UnreachableError,
)
from qts.orders import AttemptChanged, CreateOrderAttempt, OrderManager
from qts.outbox import TRADE_COMMAND, OutboxEvent
from qts.risk import SafetyState
from qts.venues import RateLimitedError, VenueRejectedError
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import SYMBOL, OrderKit, open_kit
from tests.outbox.kit import until


async def test_an_order_is_placed_and_named(kit: OrderKit) -> None:
    submitted = await kit.submit()
    (handled,) = await kit.work()
    assert handled.result == "done"
    row = await kit.attempt(submitted.attempt_id)
    assert (row["status"], row["broker_order_id"]) == ("ACKED", "V1")
    assert [request.client_order_id for request in kit.venue.placed] == [row["identifier"]]
    assert await kit.events() == ["OrderAccepted"]
    states = [change.state for change in kit.changes if isinstance(change, AttemptChanged)]
    assert states == ["SENT", "ACKED"]


async def test_an_acknowledgement_is_not_a_fill(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    assert await kit.position() == (Decimal(0), Decimal(0), Decimal(0))
    assert "FillReceived" not in await kit.events()
    assert await kit.intent(submitted.intent_id) == ("CREATED", "")
    assert await kit.database.fetchval("SELECT filled FROM broker_order") == 0


async def test_a_command_that_comes_again_does_nothing(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    for _ in range(3):
        await _publish_again(kit, submitted.attempt_id)
        assert [handled.result for handled in await kit.work()] == ["done"]
    assert len(kit.venue.placed) == 1
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (
            VenueRejectedError("no money", "insufficient_funds_bid"),
            "REJECTED",
            "insufficient_funds_bid",
        ),
        (RefusedError("the key is wrong"), "REJECTED", "REFUSED"),
        (OutcomeUnknownError("HTTP 500"), "UNKNOWN", "UNKNOWN"),
        (TimeoutError(), "UNKNOWN", "UNKNOWN"),
        (ValueError("a reply nobody can read"), "UNKNOWN", "UNKNOWN"),
        (ConnectionResetError("gone"), "UNKNOWN", "UNKNOWN"),
        (RateLimitedError("429"), "THROTTLED", "THROTTLED"),
        (UnreachableError("refused"), "THROTTLED", "UNREACHABLE"),
        (VenueBlockedError("418"), "REJECTED", "BLOCKED"),
    ],
)
async def test_every_answer_has_its_state(
    database: Database, clock: ManualClock, error: Exception, state: str, code: str
) -> None:
    async with open_kit(database, clock, throttle_base_s=30.0) as kit:  # no second attempt here
        kit.venue.before = lambda _request: error
        submitted = await kit.submit()
        assert [handled.result for handled in await kit.work()] == ["done"]
        row = await kit.attempt(submitted.attempt_id)
        assert (row["status"], row["error_code"]) == (state, code)


@pytest.mark.parametrize(
    "error", [VenueRejectedError("no"), OutcomeUnknownError("?"), TimeoutError()]
)
async def test_rejects_and_unknowns_are_never_sent_again(kit: OrderKit, error: Exception) -> None:
    kit.venue.after = lambda _request: error
    submitted = await kit.submit()
    await kit.work()
    kit.venue.after = lambda _request: None
    await _publish_again(kit, submitted.attempt_id)
    await kit.work_later()
    assert len(kit.venue.placed) == 1


async def test_an_unknown_outcome_suspends_its_market_alone(kit: OrderKit) -> None:
    kit.venue.after = lost_reply
    await kit.submit()
    await kit.work()
    assert await kit.suspended() == {SYMBOL: "UNKNOWN"}
    assert await kit.events() == ["OrderUnknown", "MarketSuspended"]
    kit.venue.after = lambda _request: None
    entry = await kit.submit()
    other = await kit.submit(symbol="KRW-ETH")
    leaving = await kit.submit(side=Side.SELL, intent_type=IntentType.EXIT_STOPLOSS)
    await kit.work()
    assert await kit.attempts(entry.intent_id) == ["SUSPENDED"]
    assert await kit.intent(entry.intent_id) == ("CANCELED", "MARKET_UNKNOWN")
    assert await kit.attempts(other.intent_id) == ["ACKED"]
    assert await kit.attempts(leaving.intent_id) == ["ACKED"]


async def test_sent_seen_again_is_unknown_and_not_resent(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.database.execute("UPDATE order_attempt SET status = 'SENT', sent_at = now()")
    await kit.work()
    assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
    assert kit.venue.placed == []


async def test_the_late_answer_of_a_held_up_sender_still_counts(kit: OrderKit) -> None:
    """The event was taken over while the first handler waited for the venue."""
    asked, answer = asyncio.Event(), asyncio.Event()
    place = kit.venue.place

    async def slow(request: OrderRequest) -> str:
        name = await place(request)
        asked.set()
        await answer.wait()
        return name

    kit.venue.place = slow  # type: ignore[method-assign]
    submitted = await kit.submit()
    first = asyncio.create_task(kit.work())
    await asked.wait()
    await _publish_again(kit, submitted.attempt_id, line="elsewhere")
    await kit.work()
    assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
    answer.set()
    await first
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]
    assert len(kit.venue.placed) == 1


async def test_who_is_held_up_before_the_call_sends_nothing(kit: OrderKit) -> None:
    class Hesitant:
        """Time passes between the commit and the call, as while a process is stopped."""

        def __init__(self, clock: Clock) -> None:
            self._clock, self._reads = clock, 0

        def now(self):  # type: ignore[no-untyped-def]
            return self._clock.now()

        def monotonic_ns(self) -> int:
            self._reads += 1
            return self._clock.monotonic_ns() + (self._reads > 1) * 2_000_000_000

        async def sleep(self, seconds: float) -> None:
            await self._clock.sleep(seconds)

    object.__setattr__(kit.context, "clock", Hesitant(kit.clock))
    submitted = await kit.submit()
    await kit.work()
    assert kit.venue.placed == []
    row = await kit.attempt(submitted.attempt_id)
    assert (row["status"], row["error_code"]) == ("THROTTLED", "LATE")


async def test_too_many_requests_make_a_new_attempt_with_a_new_identifier(kit: OrderKit) -> None:
    kit.venue.before = lambda _request: RateLimitedError("429", retry_after_s=3)
    submitted = await kit.submit()
    await kit.work()
    kit.venue.before = lambda _request: None
    assert await kit.attempts(submitted.intent_id) == ["THROTTLED", "PREPARED"]
    due_s = await kit.database.fetchval(
        "SELECT extract(epoch FROM next_retry_at - clock_timestamp())::float FROM outbox_event "
        "WHERE stream = $1 AND status = 'PENDING'",
        TRADE_COMMAND,
    )
    assert 2 < due_s <= 3  # not before the venue allows it
    await kit.work_later()
    assert await kit.attempts(submitted.intent_id) == ["THROTTLED", "ACKED"]
    names = [row[0] for row in await kit.database.fetch("SELECT identifier FROM order_attempt")]
    assert len(set(names)) == 2
    assert [request.client_order_id for request in kit.venue.placed] == [names[1]]


async def test_throttles_are_capped(database: Database, clock: ManualClock) -> None:
    async with open_kit(database, clock, max_throttles=2) as kit:
        kit.venue.before = lambda _request: RateLimitedError("429")
        submitted = await kit.submit()
        for _ in range(6):
            await kit.work_later()
        assert await kit.attempts(submitted.intent_id) == ["THROTTLED"] * 3
        assert await kit.intent(submitted.intent_id) == ("CANCELED", "THROTTLED")


async def test_a_throttled_order_that_would_be_late_is_given_up(kit: OrderKit) -> None:
    kit.venue.before = lambda _request: RateLimitedError("429", retry_after_s=120)
    submitted = await kit.submit()
    await kit.work()
    assert await kit.attempts(submitted.intent_id) == ["THROTTLED"]
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "EXPIRED")


async def test_a_stale_signal_never_fires_late(kit: OrderKit) -> None:
    submitted = await kit.submit(expires_at=kit.clock.now() + timedelta(seconds=5))
    assert isinstance(kit.clock, ManualClock)
    await kit.clock.advance(6)
    await kit.work()
    assert kit.venue.placed == []
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "EXPIRED")


async def test_the_switch_is_seen_by_what_was_submitted_before_it(kit: OrderKit) -> None:
    submitted = [await kit.submit() for _ in range(5)]
    await kit.kill.set(False, "tests", "stop")
    await kit.work()
    assert kit.venue.placed == []
    for one in submitted:
        assert await kit.intent(one.intent_id) == ("CANCELED", "KILL_SWITCH")
    assert await kit.suspended() == {}


async def test_a_lockdown_stops_entries_and_lets_exits_out(kit: OrderKit) -> None:
    entry = await kit.submit()
    leaving = await kit.submit(side=Side.SELL, intent_type=IntentType.EXIT_STOPLOSS)
    await kit.fail_safe.trip("FS104", "tests")
    await kit.work()
    assert await kit.intent(entry.intent_id) == ("CANCELED", "SAFETY_LOCKDOWN")
    assert await kit.attempts(leaving.intent_id) == ["ACKED"]


async def test_a_block_stops_everything_until_a_person_resumes(kit: OrderKit) -> None:
    kit.venue.before = lambda _request: VenueBlockedError("418 for 10 seconds")
    await kit.submit()
    await kit.work()
    kit.venue.before = lambda _request: None
    assert await kit.suspended() == {"*": "BLOCKED"}
    assert not (await kit.kill.all())["account"].enabled
    safety = await kit.fail_safe.now()
    assert (safety.state, safety.code) == (SafetyState.LOCKDOWN, "FS110")
    await kit.kill.set(True, "tests")  # the switch alone is not enough
    await kit.fail_safe.release("tests", "looked")
    leaving = await kit.submit(side=Side.SELL, intent_type=IntentType.EXIT_MANUAL)
    await kit.work()
    await kit.reconciler.reconcile_now()
    assert await kit.intent(leaving.intent_id) == ("CANCELED", "MARKET_BLOCKED")
    assert kit.venue.placed == []


async def test_an_order_whose_command_was_given_up_ends_when_its_signal_does(kit: OrderKit) -> None:
    """Its worker was lost once too often: a dead letter must not leave it under way for ever."""
    assert isinstance(kit.clock, ManualClock)
    lost = await kit.submit()
    await kit.give_up()
    kept = await kit.submit(symbol="KRW-ETH")
    await kit.reconciler.reconcile_now()
    assert await kit.attempts(lost.intent_id) == ["PREPARED"]
    await kit.work()
    await kit.clock.advance(61)
    report = await kit.reconciler.reconcile_now()
    assert report.resolved.expired == 1
    assert await kit.attempts(lost.intent_id) == ["SUSPENDED"]
    assert await kit.intent(lost.intent_id) == ("CANCELED", "EXPIRED")
    assert await kit.attempts(kept.intent_id) == ["ACKED"]
    assert len(kit.venue.placed) == 1


async def test_a_look_that_is_blocked_stops_everything_once(kit: OrderKit) -> None:
    """The venue shuts us out of its questions as of its orders: the first to hear of it stops."""
    kit.venue.is_shut = True
    for _ in range(2):
        with pytest.raises(VenueBlockedError):
            await kit.reconciler.reconcile_now()
    assert await kit.suspended() == {"*": "BLOCKED"}
    assert not (await kit.kill.all())["account"].enabled
    told = await kit.database.fetchval("SELECT count(*) FROM safety_log WHERE code = 'FS110'")
    assert told == 1
    assert (await kit.submit()).stopped == "KILL_SWITCH"


async def test_nothing_is_sent_before_the_books_were_compared(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock) as kit:
        kit.reconciler._failures = 3  # as after a start that could not reach the venue
        submitted = await kit.submit()
        (handled,) = await kit.work()
        assert (handled.result, handled.code) == ("retry", "NOT_RECONCILED")
        assert await kit.attempts(submitted.intent_id) == ["PREPARED"]
        await kit.reconciler.reconcile_now()
        await kit.work_later()
        assert await kit.attempts(submitted.intent_id) == ["ACKED"]


async def test_a_cancel_is_over_when_the_venue_says_so(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    await kit.desk.cancel(submitted.intent_id)
    await kit.work()
    assert kit.venue.cancels == ["V1"]
    assert await kit.intent(submitted.intent_id) == ("CREATED", "")  # asked for, not told
    await kit.context.ledger.record_order(kit.venue.book["V1"])
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "CANCELLED")


async def test_a_refused_cancel_cancels_nothing(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    kit.venue.trade("V1", Decimal(2), Decimal(100))
    await kit.desk.cancel(submitted.intent_id)
    await kit.work()
    assert await kit.database.fetchval("SELECT state FROM broker_order") == "OPEN"
    await kit.reconciler.reconcile_now()
    assert await kit.database.fetchval("SELECT state FROM broker_order") == "FILLED"
    assert await kit.intent(submitted.intent_id) == ("COMPLETED", "")


@pytest.mark.parametrize(
    "error", [RateLimitedError("429"), UnreachableError("away"), OutcomeUnknownError("?")]
)
async def test_a_cancel_that_did_not_get_through_is_asked_again(
    kit: OrderKit, error: Exception
) -> None:
    submitted = await kit.submit()
    await kit.work()
    kit.venue.cancel_fails = error
    await kit.desk.cancel(submitted.intent_id)
    assert [handled.result for handled in await kit.work()] == ["retry"]
    kit.venue.cancel_fails = None
    assert [handled.result for handled in await kit.work_later()] == ["done"]
    assert kit.venue.book["V1"].state is OrderState.CANCELLED


async def test_cancels_flow_while_everything_is_switched_off(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    await kit.kill.set(False, "tests")
    await kit.fail_safe.trip("FS104", "tests")
    await kit.desk.cancel(submitted.intent_id)
    await kit.work()
    assert kit.venue.book["V1"].state is OrderState.CANCELLED


async def test_an_unknown_order_is_cancelled_once_it_is_found(kit: OrderKit) -> None:
    kit.venue.after = lost_reply
    submitted = await kit.submit()
    await kit.work()
    await kit.desk.cancel(submitted.intent_id)
    await kit.work()
    assert kit.venue.cancels == []
    await kit.reconciler.reconcile_now()
    await kit.work()
    assert kit.venue.cancels == ["V1"]


async def test_a_broken_database_after_the_call_does_not_double(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome cannot be written: the event comes again, and finds SENT."""
    write = kit.executor._write

    async def broken(attempt_id: UUID, outcome: object) -> None:
        raise UnreachableError("the database is away")

    monkeypatch.setattr(kit.executor, "_write", broken)
    submitted = await kit.submit()
    working = asyncio.create_task(kit.work())
    await until(lambda: _was_placed(kit))
    while not working.done():
        await kit.clock.advance(1)  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
    monkeypatch.setattr(kit.executor, "_write", write)
    await kit.work_later()
    assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
    assert len(kit.venue.placed) == 1
    await kit.reconciler.reconcile_now()
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]


async def _was_placed(kit: OrderKit) -> bool:
    return bool(kit.venue.placed)


async def _publish_again(kit: OrderKit, attempt_id: UUID | None, line: str = SYMBOL) -> None:
    assert attempt_id is not None
    event = OutboxEvent.of(TRADE_COMMAND, CreateOrderAttempt(attempt_id), ("Market", line))
    async with kit.database.transaction() as tx:
        await kit.bus.publish(tx, event)


def test_the_desk_has_no_other_door() -> None:
    """Nothing but submit and cancel: no order without the gate's word."""
    assert {name for name in vars(OrderManager) if not name.startswith("_")} == {"submit", "cancel"}
