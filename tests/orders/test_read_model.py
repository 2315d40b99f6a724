"""How we stand, as the gate asks it: what is held, what may become ours, how the day has been."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from qts.domain import IntentType, Side
from qts.orders import AccountState, OpenOrder, load_account_state
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, START, SYMBOL, Room

D = Decimal


async def _now(floor: Room) -> AccountState:
    return await load_account_state(
        floor.database, "venue", START - timedelta(hours=1), floor.clock.now()
    )


async def test_nothing_was_done_yet(floor: Room) -> None:
    found = await _now(floor)
    assert (found.held, found.pending, found.orders_today) == ({}, (), 0)
    assert (found.earned_today, found.suspended) == (D(0), frozenset())


async def test_what_is_under_way_is_what_is_not_filled_yet(floor: Room) -> None:
    name = await floor.order()
    await floor.floor.ledger.record_fill(floor.venue.trade(name, D("0.5"), PRICE))
    found = await _now(floor)
    assert found.pending == (OpenOrder(SYMBOL, Side.BUY, D("1.5"), PRICE, False),)
    assert found.held[SYMBOL].quantity == D("0.5")
    assert (found.orders_today, found.orders_last_minute) == (1, 1)


async def test_an_unknown_outcome_counts_in_full(floor: Room) -> None:
    floor.venue.before = lost_reply
    await floor.submit()
    await floor.work()
    found = await _now(floor)
    assert found.pending == (OpenOrder(SYMBOL, Side.BUY, D(2), PRICE, True),)
    assert found.suspended == {SYMBOL}


async def test_what_the_venue_calls_filled_counts_until_its_fill_is_here(floor: Room) -> None:
    name = await floor.order()
    fill = floor.venue.trade(name, D(2), PRICE)
    await floor.floor.ledger.record_order(floor.venue.book[name])
    assert [each.remaining for each in (await _now(floor)).pending] == [D(2)]
    await floor.floor.ledger.record_fill(fill)
    assert (await _now(floor)).pending == ()


async def test_the_day_earns_what_was_realised_less_fees(floor: Room) -> None:
    buy = await floor.order()
    sell = await floor.order(side=Side.SELL, intent_type=IntentType.EXIT_TP)
    await floor.floor.ledger.record_fill(floor.venue.trade(buy, D(2), D(100), fee=D(1)))
    await floor.floor.ledger.record_fill(floor.venue.trade(sell, D(2), D(110), fee=D(2)))
    foreign = floor.venue.by_hand(SYMBOL, Side.BUY, D(1))
    await floor.floor.ledger.record_fill(floor.venue.trade(foreign, D(1), D(100), fee=D(50)))
    assert (await _now(floor)).earned_today == D(17)
