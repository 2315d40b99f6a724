"""How we stand, as the gate asks it: what is held, what may become ours, how the day has been."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from qts.domain import IntentType, Side
from qts.orders import AccountState, OpenOrder, load_account_state
from tests.accounts import VENUE
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, START, SYMBOL, OrderKit

D = Decimal


async def _now(kit: OrderKit) -> AccountState:
    return await load_account_state(
        kit.database, VENUE, START - timedelta(hours=1), kit.clock.now()
    )


async def test_nothing_was_done_yet(kit: OrderKit) -> None:
    found = await _now(kit)
    assert (found.held, found.pending, found.orders_today) == ({}, (), 0)
    assert (found.earned_today, found.suspended) == (D(0), frozenset())


async def test_what_is_under_way_is_what_is_not_filled_yet(kit: OrderKit) -> None:
    name = await kit.order()
    await kit.context.ledger.record_fill(kit.venue.trade(name, D("0.5"), PRICE))
    found = await _now(kit)
    assert found.pending == (OpenOrder(SYMBOL, Side.BUY, D("1.5"), PRICE, False),)
    assert found.held[SYMBOL].quantity == D("0.5")
    assert (found.orders_today, found.orders_last_minute) == (1, 1)


async def test_an_unknown_outcome_counts_in_full(kit: OrderKit) -> None:
    kit.venue.before = lost_reply
    await kit.submit()
    await kit.work()
    found = await _now(kit)
    assert found.pending == (OpenOrder(SYMBOL, Side.BUY, D(2), PRICE, True),)
    assert found.suspended == {SYMBOL}


async def test_what_the_venue_calls_filled_counts_until_its_fill_is_here(kit: OrderKit) -> None:
    name = await kit.order()
    fill = kit.venue.trade(name, D(2), PRICE)
    await kit.context.ledger.record_order(kit.venue.book[name])
    assert [each.remaining for each in (await _now(kit)).pending] == [D(2)]
    await kit.context.ledger.record_fill(fill)
    assert (await _now(kit)).pending == ()


async def test_the_day_earns_what_was_realised_less_fees(kit: OrderKit) -> None:
    buy = await kit.order()
    sell = await kit.order(side=Side.SELL, intent_type=IntentType.EXIT_TP)
    await kit.context.ledger.record_fill(kit.venue.trade(buy, D(2), D(100), fee=D(1)))
    await kit.context.ledger.record_fill(kit.venue.trade(sell, D(2), D(110), fee=D(2)))
    foreign = kit.venue.by_hand(SYMBOL, Side.BUY, D(1))
    await kit.context.ledger.record_fill(kit.venue.trade(foreign, D(1), D(100), fee=D(50)))
    assert (await _now(kit)).earned_today == D(17)
