"""The owner trades by hand in the same account, in ways that QTS itself never does."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from qts.brokers import KisBroker
from qts.brokers.kis_codec import CHANGE, PLACE, cancel_body, place_body, split_order_id
from qts.brokers.upbit_codec import order_of
from qts.database import Database
from qts.domain import ManualClock, OrderState, Side
from qts.orders import check_reconciled
from qts.venues import RequestPriority
from tests.conformance.venues import MORNING
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, OrderKit
from tests.orders.test_brokers import trading


@pytest.mark.parametrize("division", ["03", "13"])
async def test_an_order_at_kis_without_a_price_is_kept(
    database: Database, tmp_path: Path, division: str
) -> None:
    async with trading("kis", database, tmp_path) as (room, venue):
        assert isinstance(venue.broker, KisBroker)
        body = place_body(venue.broker._account, venue.request())
        body |= {"ORD_DVSN": division, "ORD_UNPR": "0"}
        await venue.broker._client.call(PLACE[Side.BUY], body, RequestPriority.ORDER)
        report = await room.reconciler.reconcile_now()
        assert report.foreign == 1
        assert room.reconciler.is_reconciled()


async def test_an_order_at_kis_that_was_changed_and_then_cancelled_ends(
    database: Database, tmp_path: Path
) -> None:
    async with trading("kis", database, tmp_path) as (room, venue):
        broker, request = venue.broker, venue.resting()
        assert isinstance(broker, KisBroker)
        assert request.price is not None
        first = await broker.place(request)
        day, number = split_order_id(first)
        change = cancel_body(broker._account, number, broker._branches[first])
        change |= {"RVSE_CNCL_DVSN_CD": "01", "ORD_UNPR": f"{request.price + venue.tick():.0f}"}
        await broker._client.call(CHANGE, change, RequestPriority.ORDER)
        await room.reconciler.reconcile_now()
        await broker.cancel(f"{day:%Y%m%d}-{int(number) + 1}")
        await room.reconciler.reconcile_now()
        found = await check_reconciled(room.context, MORNING)
        assert found, found.differences


async def test_a_buy_at_upbit_by_money_that_bought_nothing_is_kept(kit: OrderKit) -> None:
    """It has no volume, and nothing was executed."""
    row = {
        "uuid": "u-1",
        "market": "KRW-ETH",
        "side": "bid",
        "ord_type": "best",
        "price": "100000",
        "state": "cancel",
        "created_at": "2026-11-16T10:00:00+09:00",
        "volume": None,
        "remaining_volume": None,
        "executed_volume": "0",
        "time_in_force": "fok",
    }
    kit.venue.book["u-1"] = order_of(row)
    assert (await kit.reconciler.reconcile_now()).foreign == 1
    kept = await kit.database.fetchrow("SELECT quantity, state FROM broker_order")
    assert kept is not None
    assert tuple(kept) == (None, OrderState.CANCELLED)
    assert (await kit.reconciler.reconcile_now()).orders == 0


async def test_an_order_that_cannot_be_kept_keeps_nothing_else_from_being_seen(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = kit.venue.by_hand("KRW-ETH", Side.BUY, Decimal(-1))
    good = kit.venue.by_hand("KRW-ETH", Side.BUY, Decimal(1))
    assert odd != good
    await kit.reconciler.reconcile_now()
    rows = await kit.database.fetch("SELECT broker_order_id FROM broker_order")
    assert [row[0] for row in rows] == [good]


async def test_an_order_of_an_attempt_given_up_is_told_once(
    kit: OrderKit, clock: ManualClock
) -> None:
    kit.venue.after, kit.venue.lag_s = lost_reply, 3600
    await kit.submit()
    await kit.work()
    await clock.advance(kit.context.config.absent_after_s + 1)
    await kit.reconciler.reconcile_now()
    kit.venue.lag_s = 0
    kit.venue.trade("V1", Decimal(2), PRICE)
    await kit.reconciler.reconcile_now()
    assert (await kit.fail_safe.now()).code == "FS043"
    await kit.fail_safe.release("owner", "looked at")
    for _ in range(3):
        await clock.advance(3600)
        await kit.reconciler.reconcile_now()
    assert (await kit.fail_safe.now()).state == "NORMAL"
