"""Fills and orders as a venue tells of them: late, twice, out of order."""

from __future__ import annotations

import itertools
from decimal import Decimal

import msgspec
import pytest

from qts.database import Database
from qts.domain import IntentType, ManualClock, OrderState, Side
from qts.orders import FillApplied
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, SYMBOL, OrderKit, open_kit

D = Decimal
SELL = {"side": Side.SELL, "intent_type": IntentType.EXIT_SIGNAL}


async def test_a_fill_moves_the_position_and_tells_of_it(kit: OrderKit) -> None:
    name = await kit.order()
    assert await kit.context.ledger.record_fill(kit.venue.trade(name, D(1), D(90)))
    assert await kit.position() == (D(1), D(90), D(0))
    assert await kit.events() == ["OrderAccepted", "FillReceived"]
    (applied,) = [change for change in kit.changes if isinstance(change, FillApplied)]
    assert (applied.counted, applied.position, applied.average_price) == (True, D(1), D(90))


async def test_the_same_fill_counts_once(kit: OrderKit) -> None:
    fill = kit.venue.trade(await kit.order(), D(1), PRICE)
    assert [await kit.context.ledger.record_fill(fill) for _ in range(3)] == [True, False, False]
    assert (await kit.position())[0] == 1
    assert (await kit.events()).count("FillReceived") == 1


async def test_another_trade_under_a_known_id_is_not_counted(kit: OrderKit) -> None:
    fill = kit.venue.trade(await kit.order(), D(1), PRICE)
    await kit.context.ledger.record_fill(fill)
    assert not await kit.context.ledger.record_fill(msgspec.structs.replace(fill, quantity=D(7)))
    assert (await kit.position())[0] == 1


async def test_the_last_fill_completes_the_intent(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    await kit.context.ledger.record_fill(kit.venue.trade("V1", D(1), PRICE))
    assert await kit.intent(submitted.intent_id) == ("CREATED", "")
    await kit.context.ledger.record_fill(kit.venue.trade("V1", D(1), PRICE))
    assert await kit.intent(submitted.intent_id) == ("COMPLETED", "")
    assert (await kit.events())[-1] == "OrderClosed"


@pytest.mark.parametrize("named", [True, False])
async def test_a_fill_may_come_before_the_acknowledgement(
    database: Database, clock: ManualClock, named: bool
) -> None:
    async with open_kit(database, clock, named=named) as kit:

        async def fill_at_once(name: str) -> None:
            await kit.reconciler.handle_report(kit.venue.trade(name, D(2), D(99)))

        kit.venue.meanwhile = fill_at_once
        submitted = await kit.submit()
        await kit.work()
        assert await kit.position() == (D(2), D(99), D(0))
        assert await kit.intent(submitted.intent_id) == ("COMPLETED", "")
        assert (await kit.events()).count("FillReceived") == 1


async def test_a_fill_after_the_cancel_still_counts(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    late = kit.venue.trade("V1", D("0.5"), PRICE)
    await kit.venue.cancel("V1")
    await kit.context.ledger.record_order(
        msgspec.structs.replace(kit.venue.book["V1"], filled=D(0))  # told before the fill
    )
    assert await kit.intent(submitted.intent_id) == ("CANCELED", "CANCELLED")
    await kit.context.ledger.record_fill(late)
    assert (await kit.position())[0] == D("0.5")


async def test_a_late_last_fill_completes_what_was_cancelled(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    order = kit.venue.book["V1"]
    fill = kit.venue.trade("V1", D(2), PRICE)
    await kit.context.ledger.record_order(
        msgspec.structs.replace(order, state=OrderState.CANCELLED)
    )
    await kit.context.ledger.record_fill(fill)
    assert await kit.intent(submitted.intent_id) == ("COMPLETED", "")
    assert await kit.database.fetchval("SELECT state FROM broker_order") == "FILLED"


async def test_old_news_change_nothing(kit: OrderKit) -> None:
    name = await kit.order()
    first = kit.venue.book[name]
    kit.venue.trade(name, D(2), PRICE)
    await kit.context.ledger.record_order(kit.venue.book[name])
    await kit.context.ledger.record_order(first)
    row = await kit.database.fetchrow("SELECT state, filled FROM broker_order")
    assert row is not None
    assert (row["state"], row["filled"]) == ("FILLED", D(2))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_fills_in_any_order_make_the_same_position(
    database: Database, clock: ManualClock, order: tuple[int, ...]
) -> None:
    async with open_kit(database, clock) as kit:
        buy, sell = await kit.order(), await kit.order(**SELL)
        trades = [
            kit.venue.trade(buy, D(1), D(100)),
            kit.venue.trade(sell, D(1), D(150)),
            kit.venue.trade(buy, D(1), D(200)),
            kit.venue.trade(sell, D("0.5"), D(210)),
        ]
        for index in order:
            await kit.context.ledger.record_fill(trades[index])
        assert await kit.position() == (D("0.5"), D(200), D(55))
        gains = await kit.database.fetch("SELECT realised_pnl FROM fill ORDER BY traded_at")
        assert [row[0] for row in gains] == [D(0), D(50), D(0), D(5)]


async def test_a_long_only_position_keeps_what_would_make_it_negative(kit: OrderKit) -> None:
    sell = await kit.order(**SELL)
    await kit.context.ledger.record_fill(kit.venue.trade(sell, D(1), D(110)))
    assert (await kit.position())[0] == 0
    assert await kit.database.fetchval("SELECT count(*) FROM fill WHERE NOT counted") == 1
    buy = await kit.order()
    await kit.context.ledger.record_fill(kit.venue.trade(buy, D(1), D(100)))
    assert (await kit.position())[0] == 0
    assert await kit.database.fetchval("SELECT count(*) FROM fill WHERE NOT counted") == 0


async def test_a_position_goes_through_zero_where_it_may(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, allow_short=True) as kit:
        buy, sell = await kit.order(), await kit.order(quantity=D(5), **SELL)
        await kit.context.ledger.record_fill(kit.venue.trade(buy, D(2), D(100)))
        await kit.context.ledger.record_fill(kit.venue.trade(sell, D(5), D(110)))
        assert await kit.position() == (D(-3), D(110), D(20))


async def test_what_others_trade_is_kept_and_not_counted(kit: OrderKit) -> None:
    name = kit.venue.by_hand(SYMBOL, Side.BUY, D(3))
    kit.venue.trade(name, D(3), PRICE)
    report = await kit.reconciler.reconcile_now()
    assert (report.orders, report.foreign, report.fills) == (1, 1, 1)
    assert (await kit.position())[0] == 0
    origin = await kit.database.fetchval("SELECT origin FROM broker_order")
    assert origin == "FOREIGN"
    assert report.differences == ()  # a symbol that QTS does not trade: the owner's own holding


async def test_fills_of_an_unknown_order_count_once_it_is_found_to_be_ours(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.after = lost_reply
        await kit.submit()
        await kit.work()
        await kit.reconciler.handle_report(kit.venue.trade("V1", D(2), PRICE))
        assert (await kit.position())[0] == 0
        await kit.reconciler.reconcile_now()
        assert (await kit.position())[0] == 2
