"""The whole way over every broker: paper, and KIS and Upbit on their simulators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from qts.database import Database
from qts.domain import IntentType, OrderType, Side
from qts.orders import check_reconciled
from qts.outbox import PostgresBus
from qts.testing import BrokerMarket
from tests.conformance.venues import MORNING, NETWORKED, VENUES, inject_fault
from tests.orders.kit import STREAMS, OrderKit


@asynccontextmanager
async def trading(
    name: str, database: Database, folder: Path
) -> AsyncIterator[tuple[OrderKit, BrokerMarket]]:
    async with (
        PostgresBus.open(database, STREAMS) as bus,
        VENUES[name](database, folder) as venue,
    ):
        room = OrderKit(database, bus, cast("Any", venue.broker), venue.clock)
        await room.open()
        yield room, venue


def at_the_ask(venue: BrokerMarket, **more: Any) -> dict[str, Any]:
    price = venue.quote()[1]
    return {"symbol": venue.symbol, "quantity": venue.quantity, "price": price, **more}


@pytest.mark.parametrize("name", VENUES)
async def test_what_is_bought_and_sold_is_in_the_books(
    database: Database, tmp_path: Path, name: str
) -> None:
    async with trading(name, database, tmp_path) as (room, venue):
        buying = await room.order(**at_the_ask(venue))
        await venue.until_closed(buying)
        await room.reconciler.reconcile_now()
        assert (await room.position(venue.symbol))[0] == venue.quantity
        selling = await room.order(
            **at_the_ask(
                venue,
                side=Side.SELL,
                type=OrderType.MARKET,
                price=None,
                intent_type=IntentType.EXIT_SIGNAL,
            )
        )
        await venue.until_closed(selling)
        await room.reconciler.reconcile_now()
        assert (await room.position(venue.symbol))[0] == 0
        found = await check_reconciled(room.context, MORNING)
        assert found, found.differences


@pytest.mark.parametrize("kind", ["drop_reply", "unknown", "cut"])
@pytest.mark.parametrize("name", NETWORKED)
async def test_an_order_whose_answer_was_lost_is_found(
    database: Database, tmp_path: Path, name: str, kind: str
) -> None:
    async with trading(name, database, tmp_path) as (room, venue):
        inject_fault(venue, kind)
        submitted = await room.submit(**at_the_ask(venue))
        await room.work()
        assert await room.attempts(submitted.intent_id) == ["UNKNOWN"]
        await venue.clock.advance(1)
        await room.reconciler.reconcile_now()
        assert await room.attempts(submitted.intent_id) == ["ACKED"]
        assert len(await venue.record()) == 1
        assert await room.suspended() == {}


@pytest.mark.parametrize("name", NETWORKED)
async def test_an_order_that_never_came_is_absent(
    database: Database, tmp_path: Path, name: str
) -> None:
    async with trading(name, database, tmp_path) as (room, venue):
        inject_fault(venue, "drop_request")
        submitted = await room.submit(**at_the_ask(venue))
        await room.work()
        assert await room.attempts(submitted.intent_id) == ["UNKNOWN"]
        await venue.clock.advance(room.context.config.absent_after_s + 1)
        await room.reconciler.reconcile_now()
        assert await room.attempts(submitted.intent_id) == ["ABSENT"]
        assert await venue.record() == {}


async def test_two_orders_of_kis_that_fit_ask_a_person(database: Database, tmp_path: Path) -> None:
    """KIS keeps no name of ours: an order by hand looks just the same."""
    async with trading("kis", database, tmp_path) as (room, venue):
        inject_fault(venue, "drop_reply")
        order = at_the_ask(venue)
        submitted = await room.submit(**order)
        await room.work()
        await venue.broker.place(venue.request(price=order["price"]))
        assert len(await venue.record()) == 2
        assert (await room.reconciler.reconcile_now()).resolved.ambiguous == 1
        assert await room.attempts(submitted.intent_id) == ["UNKNOWN"]
        assert await room.suspended() == {venue.symbol: "UNKNOWN"}
