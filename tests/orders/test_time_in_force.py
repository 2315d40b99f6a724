"""Time in force: what is left of an order is cancelled at its end, confirmed and reported, once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from qts.brokers import ExecutionReport
from qts.database import Database
from qts.domain import (
    ManualClock,
    OrderState,
    OutcomeUnknownError,
    Secret,
    TimeInForce,
    good_until,
)
from qts.orders import OrderChanged, list_orders
from qts.outbox import TRADE_EXIT, PostgresBus
from qts.venues import VenueRejectedError
from tests.conformance.venues import VENUES
from tests.orders.examples import Examples, opened
from tests.orders.fake_venue import Venue
from tests.orders.kit import START, STREAMS, OrderKit

SECONDS = 5.0


async def codes(kit: OrderKit) -> list[str]:
    rows = await kit.database.fetch("SELECT code, message FROM safety_log ORDER BY id")
    return [row["message"] for row in rows if row["code"] == "FS093"]


async def until_confirmed(kit: OrderKit) -> None:
    """Execute what is due, and let the venue's report of it arrive."""
    await kit.work_later()
    await kit.reconciler.reconcile_now()
    await kit.work_later()


@pytest.mark.parametrize(
    ("time_in_force", "until"),
    [
        (TimeInForce.GTC, None),
        (TimeInForce.DAY, datetime(2026, 11, 16, 15, tzinfo=UTC)),  # midnight in Seoul
        (TimeInForce.IOC, START + timedelta(seconds=5)),
        (90.0, START + timedelta(seconds=90)),
    ],
)
def test_end_of_each_choice(time_in_force: TimeInForce | float, until: datetime | None) -> None:
    assert good_until(time_in_force, START) == until


def test_a_day_ends_after_its_last_moment() -> None:
    last = datetime(2026, 11, 16, 14, 59, 59, 999_999, tzinfo=UTC)
    assert good_until(TimeInForce.DAY, last) == last + timedelta(microseconds=1)


async def test_what_is_left_is_cancelled_and_reported_once(
    kit: OrderKit, clock: ManualClock
) -> None:
    submitted = await kit.submit(time_in_force=SECONDS)
    await kit.work()
    kit.venue.trade("V1", Decimal("0.5"), Decimal(100))
    await clock.advance(SECONDS - 0.1)
    assert await kit.time_in_force.enforce() == 0
    await clock.advance(0.1)
    assert await kit.time_in_force.enforce() == 1
    await until_confirmed(kit)
    assert kit.venue.book["V1"].state is OrderState.CANCELLED
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "CANCELLED")
    assert [text.partition(": ")[2] for text in await codes(kit)] == [
        f"BUY {kit.venue.placed[0].symbol} of scalper: 0.5 of 2 filled, 1.5 cancelled"
    ]
    cancelled = [each for each in kit.changes if isinstance(each, OrderChanged)][-1]
    assert (cancelled.state, cancelled.filled) == (OrderState.CANCELLED, Decimal("0.5"))
    for _ in range(3):
        await clock.advance(60)
        await kit.time_in_force.enforce()
        await until_confirmed(kit)
    assert len(await codes(kit)) == len(kit.venue.cancels) == 1


async def test_an_order_that_filled_meanwhile_is_no_failure(
    kit: OrderKit, clock: ManualClock
) -> None:
    submitted = await kit.submit(time_in_force=SECONDS)
    await kit.work()
    await clock.advance(SECONDS)
    await kit.time_in_force.enforce()
    kit.venue.trade("V1", Decimal(2), Decimal(100))  # before the cancel arrives there
    await until_confirmed(kit)
    assert await kit.intent(submitted.intent_id) == ("COMPLETED", "")
    assert await codes(kit) == []


async def test_a_cancel_by_the_operator_is_not_reported(kit: OrderKit, clock: ManualClock) -> None:
    submitted = await kit.submit(time_in_force=SECONDS)
    await kit.work()
    await kit.desk.cancel(submitted.intent_id)
    await until_confirmed(kit)
    await clock.advance(SECONDS)
    assert await kit.time_in_force.enforce() == 0
    assert await codes(kit) == []


async def test_a_cancel_with_an_unknown_outcome_is_looked_up(
    kit: OrderKit, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.submit(time_in_force=SECONDS)
    await kit.work()
    cancel = kit.venue.cancel

    async def lose_reply(order_id: str) -> None:
        await cancel(order_id)
        raise OutcomeUnknownError("the reply was lost")

    monkeypatch.setattr(kit.venue, "cancel", lose_reply)
    await clock.advance(SECONDS)
    await kit.time_in_force.enforce()
    assert [handled.result for handled in await kit.work()] == ["retry"]
    assert [handled.result for handled in await kit.work_later()][:1] == ["done"]
    assert kit.venue.cancels == ["V1"]  # requested once, then found cancelled
    await until_confirmed(kit)
    assert len(await codes(kit)) == 1


async def test_a_cancel_that_never_arrived_is_requested_again(
    kit: OrderKit, clock: ManualClock
) -> None:
    await kit.submit(time_in_force=SECONDS)
    await kit.work()
    await clock.advance(SECONDS)
    kit.venue.cancel_fails = OutcomeUnknownError("dropped")
    await kit.time_in_force.enforce()
    for _ in range(STREAMS[TRADE_EXIT].max_attempts):  # until the command is a dead letter
        await kit.work_later()
    assert await kit.work_later() == []
    kit.venue.cancel_fails = None
    assert await kit.time_in_force.enforce() == 0
    await clock.advance(15)
    assert await kit.time_in_force.enforce() == 1
    await until_confirmed(kit)
    assert kit.venue.book["V1"].state is OrderState.CANCELLED
    assert len(await codes(kit)) == 1


async def test_the_next_run_enforces_what_an_earlier_one_stored(
    kit: OrderKit, clock: ManualClock
) -> None:
    """A clock that jumps counts as time that has passed: the end is a point of wall-clock time."""
    await kit.submit(time_in_force=SECONDS)
    await kit.work()
    clock.set_wall(clock.now() + timedelta(hours=8))
    later = OrderKit(kit.database, kit.bus, kit.venue, clock)
    await later.open()
    assert await later.time_in_force.enforce() == 1
    await until_confirmed(later)
    assert len(await codes(later)) == 1


async def test_an_order_past_its_end_is_not_sent(kit: OrderKit, clock: ManualClock) -> None:
    submitted = await kit.submit(time_in_force=SECONDS)  # the signal itself is good for a minute
    await clock.advance(SECONDS)
    await kit.work()
    assert kit.venue.placed == []
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "EXPIRED")


async def test_orders_list_shows_the_end(kit: OrderKit) -> None:
    await kit.submit(time_in_force=SECONDS)
    await kit.submit(time_in_force=TimeInForce.GTC)
    ends = [row.good_until for row in await list_orders(kit.database, kit.venue.key)]
    assert ends == [None, START + timedelta(seconds=SECONDS)]


# --- whatever the interleaving ------------------------------------------------------------------

ACTIONS = st.lists(
    st.sampled_from(
        ["fill", "fill", "hear", "time", "enforce", "work", "crash", "compare", "lose", "cancel"]
    ),
    max_size=14,
)


class Interleaving:
    """One order of ten with a time in force, at a venue that loses replies and reports late."""

    def __init__(self, examples: Examples) -> None:
        self.database, self.do = examples.database, examples.do
        examples.begin()
        self.clock = ManualClock(START)
        self.venue = Venue(self.clock)
        self.bus = PostgresBus(self.database, STREAMS)
        self.crash()
        self.submitted = self.do(self.kit.submit(quantity=Decimal(10), time_in_force=SECONDS))
        self.do(self.kit.work())

    def crash(self) -> None:
        self.kit = OrderKit(self.database, self.bus, self.venue, self.clock)
        self.do(self.kit.open())

    def act(self, action: str) -> None:
        order = self.venue.book["V1"]
        if action == "fill" and order.state is OrderState.OPEN:
            self.venue.trade("V1", Decimal(4), Decimal(100)) if order.filled < 5 else (
                self.venue.trade("V1", order.quantity - order.filled, Decimal(100))
            )
        elif action == "hear":
            reports: list[ExecutionReport] = [*self.venue.trades[-1:], self.venue.book["V1"]]
            for report in reports:
                self.do(self.kit.reconciler.handle_report(report))
        elif action == "time":
            self.do(self.clock.advance(3.0))
        elif action == "enforce":
            self.do(self.kit.time_in_force.enforce())
        elif action == "work":
            self.do(self.kit.work_later())
        elif action == "crash":
            self.crash()
        elif action == "compare":
            self.do(self.kit.reconciler.reconcile_now())
        elif action == "lose":
            self.venue.cancel_fails = OutcomeUnknownError("dropped")
            self.do(self.kit.work_later())
            self.venue.cancel_fails = None
        elif action == "cancel" and order.state is OrderState.OPEN:
            self.do(self.venue.cancel("V1"))  # by hand, at the venue

    def finish(self) -> None:
        """The time is over, and the venue answers."""
        self.do(self.clock.advance(60.0))
        for _ in range(3):
            self.do(self.kit.time_in_force.enforce())
            self.do(until_confirmed(self.kit))
            self.do(self.clock.advance(20.0))


@pytest.fixture
def examples(database_url: Secret) -> Iterator[Examples]:
    with opened(database_url) as examples:
        yield examples


def check(examples: Examples, actions: list[str]) -> None:
    run = Interleaving(examples)
    for action in actions:
        run.act(action)
    run.finish()
    order = run.venue.book["V1"]
    assert order.state is not OrderState.OPEN
    row = run.do(run.database.fetchrow("SELECT quantity, applied, state FROM broker_order"))
    assert (row["applied"], row["state"]) == (order.filled, order.state)
    cancelled = order.quantity - order.filled if row["state"] == "CANCELLED" else Decimal(0)
    assert row["applied"] + cancelled == row["quantity"] == 10
    traded = sum((fill.quantity for fill in run.venue.trades), Decimal(0))
    assert run.do(run.kit.position())[0] == traded == order.filled
    assert run.do(run.kit.intent(run.submitted.intent_id))[0] != "CREATED"
    reports = run.do(codes(run.kit))
    assert len(reports) <= 1
    if cancelled and "cancel" not in actions:
        assert reports, "nobody else cancelled it"
    if not cancelled:
        assert not reports


@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
def test_filled_and_cancelled_are_what_was_ordered(examples: Examples, actions: list[str]) -> None:
    check(examples, actions)


def test_the_property_can_fail(examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the enforcement the order stays open, and the property says so."""

    async def nothing(_self: Any) -> int:
        return 0

    monkeypatch.setattr("qts.orders.TimeInForceEnforcer.enforce", nothing)
    with pytest.raises(AssertionError):
        check(examples, ["fill", "time"])


async def test_a_rejected_cancel_is_settled_by_the_venues_list(
    kit: OrderKit, clock: ManualClock
) -> None:
    """The venue says that nothing is left: its list decides whether it was filled or cancelled."""
    await kit.submit(time_in_force=SECONDS)
    await kit.work()
    await clock.advance(SECONDS)
    await kit.time_in_force.enforce()
    kit.venue.cancel_fails = VenueRejectedError("nothing left", "order_not_cancelable")
    kit.venue.trade("V1", Decimal(2), Decimal(100))
    await until_confirmed(kit)
    assert (await kit.position())[0] == 2
    assert await codes(kit) == []


@pytest.mark.parametrize("name", VENUES)
async def test_every_venue_cancels_what_is_left(
    database: Database, tmp_path: Path, name: str
) -> None:
    """The venue's record decides; the second order is IOC, by the venue's own rules."""
    async with (
        VENUES[name](database, tmp_path) as venue,
        PostgresBus.open(database, STREAMS) as bus,
    ):
        kit = OrderKit(database, bus, cast(Any, venue.broker), venue.clock)
        await kit.open()
        resting = venue.resting()
        order = {"symbol": venue.symbol, "quantity": venue.quantity, "price": resting.price}
        first = await kit.order(**order, time_in_force=SECONDS)
        second = await kit.order(**order, time_in_force=TimeInForce.IOC)
        await venue.go()
        record = await venue.record()
        assert (record[first].is_open, record[second].is_open) == (True, False)
        await venue.clock.advance(SECONDS)
        assert await kit.time_in_force.enforce() >= 1
        await until_confirmed(kit)
        assert not any(each.is_open for each in (await venue.record()).values())
        rows = await list_orders(database, venue.broker.key)
        assert {(row.status, row.order_state) for row in rows} == {("CANCELED", "CANCELLED")}
        assert {row.broker_order_id for row in rows} == {first, second}
        assert len(await codes(kit)) >= 1
