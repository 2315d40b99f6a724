"""A frozen position: no strategy enters or leaves it, its stops do, and a person releases it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from qts.domain import IntentType, ManualClock, RefusedError, Side
from qts.orders import freeze_position, load_account_state, resume_manually
from tests.accounts import VENUE
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, START, SYMBOL, OrderKit

D = Decimal
BY_STRATEGY = (IntentType.ENTRY, IntentType.EXIT_SIGNAL, IntentType.EXIT_TP)


async def frozen(kit: OrderKit, symbol: str = SYMBOL) -> bool:
    return await freeze_position(
        kit.database, kit.bus, kit.venue.key, symbol, "a test", kit.clock.now()
    )


async def holding(kit: OrderKit, quantity: int = 2) -> None:
    name = await kit.order(quantity=D(quantity))
    await kit.context.ledger.record_fill(kit.venue.trade(name, D(quantity), PRICE))
    kit.venue.placed.clear()


@pytest.mark.parametrize("where", [SYMBOL, "*"])
async def test_only_stops_and_people_get_an_order_out(kit: OrderKit, where: str) -> None:
    await holding(kit)
    for why in IntentType:
        kit.venue.placed.clear()
        side = Side.SELL if why.is_exit else Side.BUY
        submitted = await kit.submit(side=side, intent_type=why)  # approved a moment before
        assert await frozen(kit, where)
        await kit.work()
        status = (await kit.attempt(submitted.attempt_id))["status"]
        if why in BY_STRATEGY:
            assert (why, status, kit.venue.placed) == (why, "SUSPENDED", [])
            assert await kit.intent(submitted.intent_id) == ("CANCELED", "MARKET_FROZEN")
        else:
            assert (why, status, len(kit.venue.placed)) == (why, "ACKED", 1)
        await resume_manually(kit.database, VENUE, where)


async def test_other_symbols_trade_on(kit: OrderKit) -> None:
    await frozen(kit, "KRW-ETH")
    await kit.order()
    assert len(kit.venue.placed) == 1


async def test_the_owner_is_told_once_and_it_is_frozen_once(kit: OrderKit) -> None:
    assert [await frozen(kit), await frozen(kit)] == [True, False]
    assert await kit.events() == ["MarketSuspended"]
    found = await load_account_state(
        kit.database, VENUE, START - timedelta(hours=1), kit.clock.now()
    )
    assert found.frozen == {SYMBOL}
    assert not found.suspended


async def test_an_unknown_outcome_that_is_resolved_does_not_release_it(
    kit: OrderKit, clock: ManualClock
) -> None:
    kit.venue.before = lost_reply
    submitted = await kit.submit()
    await kit.work()
    assert await kit.suspended() == {SYMBOL: "UNKNOWN"}
    assert await frozen(kit)  # more than the suspension that the unknown outcome brought
    with pytest.raises(RefusedError, match="unknown"):
        await resume_manually(kit.database, VENUE, SYMBOL)
    await clock.advance(kit.context.config.absent_after_s + 1)
    await kit.reconciler.reconcile_now()
    assert await kit.attempts(submitted.intent_id) == ["ABSENT"]
    assert await kit.suspended() == {SYMBOL: "FROZEN"}


async def test_a_person_releases_it(kit: OrderKit) -> None:
    await frozen(kit)
    await resume_manually(kit.database, VENUE, SYMBOL)
    await kit.order()
    assert len(kit.venue.placed) == 1
