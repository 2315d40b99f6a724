"""Fills and orders as a venue tells of them: late, twice, out of order."""

from __future__ import annotations

import itertools
from decimal import Decimal

import msgspec
import pytest

from qts.database import Database
from qts.domain import IntentType, ManualClock, OrderState, RefusedError, Side
from qts.orders import FillApplied, adopt_holding, external_fill
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, SYMBOL, Room, room

D = Decimal
SELL = {"side": Side.SELL, "intent_type": IntentType.EXIT_SIGNAL}


async def test_a_fill_moves_the_position_and_tells_of_it(floor: Room) -> None:
    name = await floor.order()
    assert await floor.floor.ledger.record_fill(floor.venue.trade(name, D(1), D(90)))
    assert await floor.position() == (D(1), D(90), D(0))
    assert await floor.events() == ["OrderAccepted", "FillReceived"]
    (applied,) = [change for change in floor.changes if isinstance(change, FillApplied)]
    assert (applied.counted, applied.position, applied.average_price) == (True, D(1), D(90))


async def test_the_same_fill_counts_once(floor: Room) -> None:
    fill = floor.venue.trade(await floor.order(), D(1), PRICE)
    assert [await floor.floor.ledger.record_fill(fill) for _ in range(3)] == [True, False, False]
    assert (await floor.position())[0] == 1
    assert (await floor.events()).count("FillReceived") == 1


async def test_another_trade_under_a_known_id_is_not_counted(floor: Room) -> None:
    fill = floor.venue.trade(await floor.order(), D(1), PRICE)
    await floor.floor.ledger.record_fill(fill)
    assert not await floor.floor.ledger.record_fill(msgspec.structs.replace(fill, quantity=D(7)))
    assert (await floor.position())[0] == 1


async def test_the_last_fill_completes_the_intent(floor: Room) -> None:
    submitted = await floor.submit()
    await floor.work()
    await floor.floor.ledger.record_fill(floor.venue.trade("V1", D(1), PRICE))
    assert await floor.intent(submitted.intent_id) == ("CREATED", "")
    await floor.floor.ledger.record_fill(floor.venue.trade("V1", D(1), PRICE))
    assert await floor.intent(submitted.intent_id) == ("COMPLETED", "")
    assert (await floor.events())[-1] == "OrderClosed"


@pytest.mark.parametrize("named", [True, False])
async def test_a_fill_may_come_before_the_acknowledgement(
    database: Database, clock: ManualClock, named: bool
) -> None:
    async with room(database, clock, named=named) as floor:

        async def fill_at_once(name: str) -> None:
            await floor.reconciler.handle_report(floor.venue.trade(name, D(2), D(99)))

        floor.venue.meanwhile = fill_at_once
        submitted = await floor.submit()
        await floor.work()
        assert await floor.position() == (D(2), D(99), D(0))
        assert await floor.intent(submitted.intent_id) == ("COMPLETED", "")
        assert (await floor.events()).count("FillReceived") == 1


async def test_a_fill_after_the_cancel_still_counts(floor: Room) -> None:
    submitted = await floor.submit()
    await floor.work()
    late = floor.venue.trade("V1", D("0.5"), PRICE)
    await floor.venue.cancel("V1")
    await floor.floor.ledger.record_order(
        msgspec.structs.replace(floor.venue.book["V1"], filled=D(0))  # told before the fill
    )
    assert await floor.intent(submitted.intent_id) == ("CANCELED", "CANCELLED")
    await floor.floor.ledger.record_fill(late)
    assert (await floor.position())[0] == D("0.5")


async def test_a_late_last_fill_completes_what_was_cancelled(floor: Room) -> None:
    submitted = await floor.submit()
    await floor.work()
    order = floor.venue.book["V1"]
    fill = floor.venue.trade("V1", D(2), PRICE)
    await floor.floor.ledger.record_order(
        msgspec.structs.replace(order, state=OrderState.CANCELLED)
    )
    await floor.floor.ledger.record_fill(fill)
    assert await floor.intent(submitted.intent_id) == ("COMPLETED", "")
    assert await floor.database.fetchval("SELECT state FROM broker_order") == "FILLED"


async def test_old_news_change_nothing(floor: Room) -> None:
    name = await floor.order()
    first = floor.venue.book[name]
    floor.venue.trade(name, D(2), PRICE)
    await floor.floor.ledger.record_order(floor.venue.book[name])
    await floor.floor.ledger.record_order(first)
    row = await floor.database.fetchrow("SELECT state, filled FROM broker_order")
    assert row is not None
    assert (row["state"], row["filled"]) == ("FILLED", D(2))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_fills_in_any_order_make_the_same_position(
    database: Database, clock: ManualClock, order: tuple[int, ...]
) -> None:
    async with room(database, clock) as floor:
        buy, sell = await floor.order(), await floor.order(**SELL)
        trades = [
            floor.venue.trade(buy, D(1), D(100)),
            floor.venue.trade(sell, D(1), D(150)),
            floor.venue.trade(buy, D(1), D(200)),
            floor.venue.trade(sell, D("0.5"), D(210)),
        ]
        for index in order:
            await floor.floor.ledger.record_fill(trades[index])
        assert await floor.position() == (D("0.5"), D(200), D(55))
        gains = await floor.database.fetch("SELECT realised_pnl FROM fill ORDER BY traded_at")
        assert [row[0] for row in gains] == [D(0), D(50), D(0), D(5)]


async def test_a_long_only_position_keeps_what_would_make_it_negative(floor: Room) -> None:
    sell = await floor.order(**SELL)
    await floor.floor.ledger.record_fill(floor.venue.trade(sell, D(1), D(110)))
    assert (await floor.position())[0] == 0
    assert await floor.database.fetchval("SELECT count(*) FROM fill WHERE NOT counted") == 1
    buy = await floor.order()
    await floor.floor.ledger.record_fill(floor.venue.trade(buy, D(1), D(100)))
    assert (await floor.position())[0] == 0
    assert await floor.database.fetchval("SELECT count(*) FROM fill WHERE NOT counted") == 0


async def test_a_position_goes_through_zero_where_it_may(
    database: Database, clock: ManualClock
) -> None:
    async with room(database, clock, allow_short=True) as floor:
        buy, sell = await floor.order(), await floor.order(quantity=D(5), **SELL)
        await floor.floor.ledger.record_fill(floor.venue.trade(buy, D(2), D(100)))
        await floor.floor.ledger.record_fill(floor.venue.trade(sell, D(5), D(110)))
        assert await floor.position() == (D(-3), D(110), D(20))


async def test_what_others_trade_is_kept_and_not_counted(floor: Room) -> None:
    name = floor.venue.by_hand(SYMBOL, Side.BUY, D(3))
    floor.venue.trade(name, D(3), PRICE)
    report = await floor.reconciler.reconcile_now()
    assert (report.orders, report.foreign, report.fills) == (1, 1, 1)
    assert (await floor.position())[0] == 0
    origin = await floor.database.fetchval("SELECT origin FROM broker_order")
    assert origin == "FOREIGN"
    (difference,) = report.differences
    assert (difference.symbol, difference.ours, difference.venue) == (SYMBOL, D(0), D(3))


async def test_a_holding_of_others_is_taken_over_only_by_hand(floor: Room) -> None:
    floor.venue.external = {SYMBOL: D(3)}
    assert (await floor.reconciler.reconcile_now()).differences
    assert (await floor.position())[0] == 0
    await adopt_holding(
        floor.database, floor.bus, "venue", external_fill(SYMBOL, D(3), D(80)), floor.clock
    )
    assert await floor.position() == (D(3), D(80), D(0))
    assert (await floor.reconciler.reconcile_now()).differences == ()
    floor.venue.external = {SYMBOL: D(1)}
    await adopt_holding(
        floor.database, floor.bus, "venue", external_fill(SYMBOL, D(-2), D(80)), floor.clock
    )
    assert (await floor.reconciler.reconcile_now()).differences == ()
    with pytest.raises(RefusedError, match="negative"):
        await adopt_holding(floor.database, floor.bus, "venue", external_fill(SYMBOL, D(-2), D(80)))
    assert (await floor.position())[0] == 1


async def test_fills_of_an_unknown_order_count_once_it_is_found_to_be_ours(
    database: Database, clock: ManualClock
) -> None:
    async with room(database, clock, named=False) as floor:
        floor.venue.after = lost_reply
        await floor.submit()
        await floor.work()
        await floor.reconciler.handle_report(floor.venue.trade("V1", D(2), PRICE))
        assert (await floor.position())[0] == 0
        await floor.reconciler.reconcile_now()
        assert (await floor.position())[0] == 2
