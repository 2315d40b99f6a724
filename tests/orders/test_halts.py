"""A frozen position: no strategy enters or leaves it, its stops do, and a person releases it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from qts.domain import IntentType, ManualClock, RefusedError, Side
from qts.orders import freeze_position, load_account_state, resume_manually
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, START, SYMBOL, Room

D = Decimal
BY_STRATEGY = (IntentType.ENTRY, IntentType.EXIT_SIGNAL, IntentType.EXIT_TP)


async def frozen(floor: Room, symbol: str = SYMBOL) -> bool:
    return await freeze_position(
        floor.database, floor.bus, floor.venue.name, symbol, "a test", floor.clock.now()
    )


async def holding(floor: Room, quantity: int = 2) -> None:
    name = await floor.order(quantity=D(quantity))
    await floor.floor.ledger.record_fill(floor.venue.trade(name, D(quantity), PRICE))
    floor.venue.placed.clear()


@pytest.mark.parametrize("where", [SYMBOL, "*"])
async def test_only_stops_and_people_get_an_order_out(floor: Room, where: str) -> None:
    await holding(floor)
    for why in IntentType:
        floor.venue.placed.clear()
        side = Side.SELL if why.is_exit else Side.BUY
        submitted = await floor.submit(side=side, intent_type=why)  # approved a moment before
        assert await frozen(floor, where)
        await floor.work()
        status = (await floor.attempt(submitted.attempt_id))["status"]
        if why in BY_STRATEGY:
            assert (why, status, floor.venue.placed) == (why, "SUSPENDED", [])
            assert await floor.intent(submitted.intent_id) == ("CANCELED", "MARKET_FROZEN")
        else:
            assert (why, status, len(floor.venue.placed)) == (why, "ACKED", 1)
        await resume_manually(floor.database, "venue", where)


async def test_other_symbols_trade_on(floor: Room) -> None:
    await frozen(floor, "KRW-ETH")
    await floor.order()
    assert len(floor.venue.placed) == 1


async def test_the_owner_is_told_once_and_it_is_frozen_once(floor: Room) -> None:
    assert [await frozen(floor), await frozen(floor)] == [True, False]
    assert await floor.events() == ["MarketSuspended"]
    found = await load_account_state(
        floor.database, "venue", START - timedelta(hours=1), floor.clock.now()
    )
    assert found.frozen == {SYMBOL}
    assert not found.suspended


async def test_an_unknown_outcome_that_is_resolved_does_not_release_it(
    floor: Room, clock: ManualClock
) -> None:
    floor.venue.before = lost_reply
    submitted = await floor.submit()
    await floor.work()
    assert await floor.suspended() == {SYMBOL: "UNKNOWN"}
    assert await frozen(floor)  # more than the suspension that the unknown outcome brought
    with pytest.raises(RefusedError, match="unknown"):
        await resume_manually(floor.database, "venue", SYMBOL)
    await clock.advance(floor.floor.config.absent_after_s + 1)
    await floor.reconciler.reconcile_now()
    assert await floor.attempts(submitted.intent_id) == ["ABSENT"]
    assert await floor.suspended() == {SYMBOL: "FROZEN"}


async def test_a_person_releases_it(floor: Room) -> None:
    await frozen(floor)
    await resume_manually(floor.database, "venue", SYMBOL)
    await floor.order()
    assert len(floor.venue.placed) == 1
