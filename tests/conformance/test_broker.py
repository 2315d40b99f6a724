"""Conformance suite of every broker, checked against the venue's own record of orders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from qts.brokers import StreamGap
from qts.database import Database
from qts.domain import BrokerOrder, OrderState, OutcomeUnknownError, Side, TimeInForce
from qts.venues import RateLimitedError, VenueRejectedError
from tests.conformance.venues import MORNING, NETWORKED, VENUES, Listener, Venue, inject_fault

NOTHING_KNOWN: frozenset[str] = frozenset()


@pytest.fixture(params=VENUES)
async def venue(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> AsyncIterator[Venue]:
    async with VENUES[request.param](database, tmp_path) as venue:
        yield venue


networked = pytest.mark.parametrize("venue", NETWORKED, indirect=True)


async def the_order(venue: Venue, order_id: str) -> BrokerOrder:
    (found,) = [o for o in await venue.broker.orders(MORNING) if o.broker_order_id == order_id]
    return found


async def test_a_placed_order_is_listed_as_it_was_asked_for(venue: Venue) -> None:
    request = venue.resting()
    order_id = await venue.broker.place(request)
    order = await the_order(venue, order_id)
    assert set(await venue.record()) == {order_id}
    assert (order.symbol, order.side, order.type) == (request.symbol, request.side, request.type)
    assert (order.quantity, order.price, order.filled) == (
        request.quantity,
        request.price,
        Decimal(0),
    )
    assert order.state is OrderState.OPEN
    assert abs(order.placed_at - venue.clock.now()) < timedelta(seconds=2)


async def test_a_limit_order_rests_and_fills_when_the_price_comes_through(venue: Venue) -> None:
    order_id = await venue.broker.place(venue.resting())
    assert (await venue.record())[order_id].is_open
    assert await venue.broker.fills(MORNING) == []
    await venue.move(-2.0)
    await venue.until_closed(order_id)
    order = await the_order(venue, order_id)
    assert (order.state, order.filled) == (OrderState.FILLED, order.quantity)
    fills = await venue.broker.fills(MORNING)
    assert order.price is not None
    assert all(fill.price <= order.price for fill in fills)
    assert sum(fill.quantity for fill in fills) == order.quantity


async def test_an_ioc_order_that_meets_nothing_ends_at_once(venue: Venue) -> None:
    order_id = await venue.broker.place(venue.resting(time_in_force=TimeInForce.IOC))
    await venue.go()
    assert not (await venue.record())[order_id].is_open
    order = await the_order(venue, order_id)
    assert (order.state, order.filled) == (OrderState.CANCELLED, Decimal(0))
    with pytest.raises(VenueRejectedError):
        await venue.broker.cancel(order_id)


async def test_an_ioc_order_fills_what_it_can_and_ends(venue: Venue) -> None:
    _, ask = venue.quote()
    quantity = venue.more_than_shown()
    request = venue.request(price=ask, quantity=quantity, time_in_force=TimeInForce.IOC)
    order_id = await venue.broker.place(request)
    await venue.go()
    record = (await venue.record())[order_id]
    assert not record.is_open
    assert 0 < record.filled < quantity
    order = await the_order(venue, order_id)
    assert (order.state, order.filled) == (OrderState.CANCELLED, record.filled)


@pytest.mark.parametrize("side", Side)
async def test_a_market_order_fills_at_once(venue: Venue, side: Side) -> None:
    if side is Side.SELL:
        await venue.broker.place(venue.request(Side.BUY))
        await venue.go()
    order_id = await venue.broker.place(venue.request(side))
    await venue.go()
    order = await the_order(venue, order_id)
    assert (order.state, order.side) == (OrderState.FILLED, side)
    assert (await venue.record())[order_id].filled == venue.quantity


async def test_partial_fills_add_up(venue: Venue) -> None:
    _, ask = venue.quote()
    async with Listener.on(venue.broker) as listener:
        order_id = await venue.broker.place(
            venue.request(price=ask, quantity=venue.more_than_shown())
        )
        await listener.until(lambda: listener.filled() > 0)
        await venue.broker.fills(MORNING)
        first = await the_order(venue, order_id)
        assert first.state is OrderState.OPEN
        assert 0 < first.filled < first.quantity
        await venue.move(-2.0)
        await venue.until_closed(order_id)
        fills = await venue.broker.fills(MORNING)
        record = (await venue.record())[order_id]
    assert len(fills) >= 2
    assert sum(fill.quantity for fill in fills) == record.filled == record.quantity
    paid = sum((fill.quantity * fill.price for fill in fills), Decimal(0))
    assert abs(paid - record.paid) < Decimal("0.0001")


async def test_fills_and_execution_reports_agree_by_trade_id(venue: Venue) -> None:
    async with Listener.on(venue.broker) as listener:
        for _ in range(3):
            await venue.broker.place(venue.request())
            await venue.go()
        await listener.until(lambda: listener.filled() == 3 * venue.quantity)
        reported = {
            fill.trade_id: (fill.broker_order_id, fill.quantity, fill.price, fill.fee)
            for fill in listener.fills
        }
        listed = {
            fill.trade_id: (fill.broker_order_id, fill.quantity, fill.price, fill.fee)
            for fill in await venue.broker.fills(MORNING)
        }
    assert reported == listed


async def test_a_filled_order_is_reported(venue: Venue) -> None:
    async with Listener.on(venue.broker) as listener:
        order_id = await venue.broker.place(venue.request())

        def is_reported() -> bool:
            return any(
                isinstance(n, BrokerOrder)
                and (n.broker_order_id, n.state) == (order_id, OrderState.FILLED)
                for n in listener.reports
            )

        await venue.go()
        await listener.until(lambda: is_reported() and listener.filled() >= venue.quantity)
        record = (await venue.record())[order_id]
    assert not record.is_open
    assert record.filled == record.quantity
    assert listener.filled() == record.filled


async def test_every_stream_begins_with_a_gap(venue: Venue) -> None:
    async with Listener.on(venue.broker) as listener:
        assert isinstance(listener.reports[0], StreamGap)


async def test_a_cancelled_order_is_cancelled_and_reported(venue: Venue) -> None:
    async with Listener.on(venue.broker) as listener:
        order_id = await venue.broker.place(venue.resting())
        await venue.broker.cancel(order_id)
        assert not (await venue.record())[order_id].is_open
        order = await the_order(venue, order_id)
        assert (order.state, order.filled) == (OrderState.CANCELLED, Decimal(0))
        await listener.until(
            lambda: any(
                isinstance(n, BrokerOrder)
                and (n.broker_order_id, n.state) == (order_id, OrderState.CANCELLED)
                for n in listener.reports
            )
        )


async def test_cancelling_a_filled_order_is_rejected(venue: Venue) -> None:
    order_id = await venue.broker.place(venue.request())
    await venue.go()
    with pytest.raises(VenueRejectedError):
        await venue.broker.cancel(order_id)
    assert (await the_order(venue, order_id)).state is OrderState.FILLED


async def test_cancelling_twice_is_rejected(venue: Venue) -> None:
    order_id = await venue.broker.place(venue.resting())
    await venue.broker.cancel(order_id)
    with pytest.raises(VenueRejectedError):
        await venue.broker.cancel(order_id)


async def test_more_than_the_account_has_is_rejected_and_leaves_nothing(venue: Venue) -> None:
    bid, _ = venue.quote()
    too_much = (venue.start_cash / bid).quantize(Decimal(1)) * 3
    with pytest.raises(VenueRejectedError) as buying:
        await venue.broker.place(venue.request(price=bid, quantity=too_much))
    with pytest.raises(VenueRejectedError):
        await venue.broker.place(venue.request(Side.SELL))
    assert buying.value.code
    assert await venue.record() == {}
    assert (await venue.broker.account()).cash == venue.start_cash


async def test_a_price_off_the_tick_is_rejected(venue: Venue) -> None:
    bid, _ = venue.quote()
    with pytest.raises(VenueRejectedError):
        await venue.broker.place(venue.request(price=bid + venue.tick() / 2))
    assert await venue.record() == {}


async def test_the_account_is_the_sum_of_its_fills(venue: Venue) -> None:
    await venue.broker.place(venue.request())
    await venue.go()
    await venue.broker.fills(MORNING)
    await venue.broker.place(venue.request(quantity=venue.quantity * 2))
    await venue.go()
    await venue.broker.fills(MORNING)
    await venue.broker.place(venue.request(Side.SELL))
    await venue.go()
    fills = await venue.broker.fills(MORNING)
    account = await venue.broker.account()
    spent = sum((f.side.sign * f.quantity * f.price + f.fee for f in fills), Decimal(0))
    assert abs(account.cash - (venue.start_cash - spent)) <= venue.tolerance
    assert abs(account.cash - await venue.cash()) <= Decimal("0.00001")
    (holding,) = account.holdings
    assert (holding.symbol, holding.quantity) == (venue.symbol, 2 * venue.quantity)
    assert holding.quantity == sum(f.side.sign * f.quantity for f in fills)
    assert all(fill.fee > 0 for fill in fills)


# -- unknown outcomes


async def test_an_order_is_found_after_it_was_placed(venue: Venue) -> None:
    request, sent_at = venue.resting(), venue.clock.now()
    order_id = await venue.broker.place(request)
    found = await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)
    assert [order.broker_order_id for order in found.candidates] == [order_id]


@networked
@pytest.mark.parametrize("fault", ["drop_reply", "unknown", "cut"])
async def test_an_order_whose_reply_was_lost_is_found(venue: Venue, fault: str) -> None:
    request, sent_at = venue.resting(), venue.clock.now()
    inject_fault(venue, fault)
    with pytest.raises(OutcomeUnknownError):
        await venue.broker.place(request)
    (order_id,) = await venue.record()  # it was accepted, once
    await venue.go()
    found = await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)
    assert [order.broker_order_id for order in found.candidates] == [order_id]


@networked
async def test_a_late_reply_leaves_the_outcome_unknown(venue: Venue) -> None:
    request, sent_at = venue.resting(), venue.clock.now()
    inject_fault(venue, "slow", seconds=3600)  # on a clock that does not move
    with pytest.raises(OutcomeUnknownError):
        await venue.broker.place(request)
    found = await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)
    assert {order.broker_order_id for order in found.candidates} == set(await venue.record())


@networked
@pytest.mark.parametrize("fault", ["drop_request", "error"])
async def test_an_order_that_was_never_accepted_is_not_found(venue: Venue, fault: str) -> None:
    request, sent_at = venue.resting(), venue.clock.now()
    inject_fault(venue, fault)
    with pytest.raises(OutcomeUnknownError):
        await venue.broker.place(request)
    assert await venue.record() == {}
    found = await venue.broker.find_order(request, sent_at, NOTHING_KNOWN)
    assert found.candidates == ()


@networked
async def test_a_rate_limited_order_was_not_placed_and_can_be_placed_again(venue: Venue) -> None:
    inject_fault(venue, "limit")
    with pytest.raises(RateLimitedError):
        await venue.broker.place(venue.resting())
    assert await venue.record() == {}
    await venue.broker.place(venue.resting())
    assert len(await venue.record()) == 1


@networked
async def test_an_order_is_sent_once_whatever_happens(venue: Venue) -> None:
    """Three lost replies in a row: three orders at the venue, one for each call, never more."""
    inject_fault(venue, "drop_reply", count=3)
    for calls in (1, 2, 3):
        with pytest.raises(OutcomeUnknownError):
            await venue.broker.place(venue.resting())
        assert len(await venue.record()) == calls


async def test_orders_of_other_attempts_are_no_candidates(venue: Venue) -> None:
    request, sent_at = venue.resting(), venue.clock.now()
    order_id = await venue.broker.place(request)
    found = await venue.broker.find_order(request, sent_at, frozenset({order_id}))
    assert found.candidates == ()


# -- duplicate, reordered and missing reports


@networked
@pytest.mark.parametrize("fault", ["duplicate_fills", "reorder_fills"])
async def test_duplicate_or_reordered_fills_count_once(venue: Venue, fault: str) -> None:
    inject_fault(venue, fault, path="", method="", count=4)
    async with Listener.on(venue.broker) as listener:
        order_id = await venue.broker.place(venue.request(quantity=venue.more_than_shown()))
        await venue.go()
        filled = (await venue.record())[order_id].filled
        await listener.until(lambda: listener.filled() == filled)
        await venue.broker.place(venue.request())
        await venue.go()
        await listener.until(lambda: listener.filled() == filled + venue.quantity)
    listed = await venue.broker.fills(MORNING)
    assert {fill.trade_id for fill in listed} == {fill.trade_id for fill in listener.fills}
    assert sum(fill.quantity for fill in listed) == filled + venue.quantity


@networked
async def test_fills_missing_from_the_stream_are_listed(venue: Venue) -> None:
    inject_fault(venue, "lose_fills", path="", method="", count=None)
    async with Listener.on(venue.broker) as listener:
        order_id = await venue.broker.place(venue.request())
        await venue.go()
        fills = await venue.broker.fills(MORNING)
        assert {fill.broker_order_id for fill in fills} == {order_id}
        assert sum(fill.quantity for fill in fills) == venue.quantity
        assert not any(fill.trade_id not in {f.trade_id for f in fills} for fill in listener.fills)


@networked
async def test_an_interrupted_stream_reports_a_gap_and_resumes(venue: Venue) -> None:
    async with Listener.on(venue.broker) as listener:
        venue.simulator.drop_streams()
        await venue.broker.place(venue.request())

        def is_back() -> bool:
            return sum(isinstance(report, StreamGap) for report in listener.reports) >= 2

        for _ in range(200):
            await venue.go()
            if is_back():
                break
        await listener.until(is_back)
        missed = await venue.broker.fills(MORNING)
        assert sum(fill.quantity for fill in missed) == venue.quantity
        order_id = await venue.broker.place(venue.request())
        await venue.go()
        await listener.until(
            lambda: any(fill.broker_order_id == order_id for fill in listener.fills)
        )
