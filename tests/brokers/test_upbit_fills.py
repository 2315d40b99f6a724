"""Reading the fills of Upbit costs what has happened since, not what happened in the week."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from qts.brokers.upbit_codec import OVERLAP, AppliedFills, UpbitFillReader
from qts.database import Database
from tests.brokers.test_upbit_broker import far_below
from tests.conformance.venues import MORNING, UpbitVenue, upbit

LISTS = 2  # requests: the open orders, and the closed ones


@pytest.fixture
async def venue(database: Database, tmp_path: Path) -> AsyncIterator[UpbitVenue]:
    async with upbit(database, tmp_path) as venue:
        yield venue


def requests(venue: UpbitVenue) -> int:
    return sum(each["requests"] for each in venue.simulator.gateway.stats().values())


async def fill_one(venue: UpbitVenue) -> str:
    """Place an order that fills, and let time pass; return its id."""
    order_id: str = await venue.broker.place(venue.request())
    await venue.until_closed(order_id)
    return order_id


def reader_of(
    venue: UpbitVenue, known: Mapping[str, AppliedFills] | None = None
) -> tuple[UpbitFillReader, list[str]]:
    """Return a reader as the broker has it, and the orders that it asks the ledger for."""
    asked: list[str] = []

    async def applied(order_ids: Sequence[str]) -> Mapping[str, AppliedFills]:
        asked.extend(order_ids)
        return known or {}

    own = venue.broker._fills  # type: ignore[attr-defined]
    return UpbitFillReader(own._lists, own._costs, applied), asked


async def test_orders_that_were_read_cost_no_further_request(venue: UpbitVenue) -> None:
    for _ in range(5):
        await fill_one(venue)
    first = await venue.broker.fills(MORNING)
    before = requests(venue)
    assert await venue.broker.fills(MORNING) == first
    assert requests(venue) - before == LISTS
    await fill_one(venue)
    before = requests(venue)
    assert len(await venue.broker.fills(MORNING)) > len(first)
    assert requests(venue) - before == LISTS + 1


async def test_the_second_list_begins_where_the_first_ended(venue: UpbitVenue) -> None:
    await fill_one(venue)
    await venue.clock.advance(3600)
    last = await fill_one(venue)
    reader, _ = reader_of(venue)
    began = MORNING - timedelta(days=7)
    everything = await reader.read(began, MORNING, venue.clock.now())
    start, listed_from = reader._start(began, venue.clock.now())
    placed_at = max(order.placed_at for order in await venue.broker.orders(MORNING))
    assert (start, listed_from) == (placed_at - OVERLAP, began)
    assert (
        await reader.read(began, MORNING, venue.clock.now()) == everything
    )  # those of the first hour are remembered
    assert everything[-1].broker_order_id == last
    earlier = began - timedelta(seconds=1)
    # Asked for orders from before the first list, it lists all of them.
    assert reader._start(earlier, venue.clock.now())[0] == earlier


async def test_an_order_that_was_open_and_fills_much_later_is_found(venue: UpbitVenue) -> None:
    old = await venue.broker.place(far_below(venue))
    reader, _ = reader_of(venue)
    days_ago = MORNING - timedelta(days=6)
    assert await reader.read(days_ago, MORNING, venue.clock.now()) == []
    await venue.clock.advance(2 * OVERLAP.total_seconds())
    newer = await fill_one(venue)
    await reader.read(days_ago, MORNING, venue.clock.now())
    assert reader._listed is not None
    await venue.move(-8.0)
    await venue.until_closed(old)
    found = await reader.read(days_ago, MORNING, venue.clock.now())
    assert {fill.broker_order_id for fill in found} == {old, newer}


async def test_orders_of_the_ledger_are_not_requested_unless_their_fills_are_asked_for(
    venue: UpbitVenue,
) -> None:
    mine, other = await fill_one(venue), await fill_one(venue)
    fills = await venue.broker.fills(MORNING)
    own = [fill for fill in fills if fill.broker_order_id == mine]
    has = AppliedFills(sum((fill.quantity for fill in own), Decimal(0)), own[-1].at)
    reader, asked = reader_of(venue, {mine: has, other: has._replace(quantity=Decimal("1e-8"))})
    await venue.clock.advance(600)
    days_ago, now = MORNING - timedelta(days=6), venue.clock.now()
    before = requests(venue)
    assert await reader.read(days_ago, now, now) == []
    assert requests(venue) - before == LISTS + 1  # the other one: the ledger lacks a part of it
    assert sorted(asked) == sorted([mine, other])
    assert await reader.read(days_ago, MORNING, now) == fills
