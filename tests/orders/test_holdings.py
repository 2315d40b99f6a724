"""Holdings that QTS did not buy: the baseline, its adoption, and trades by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.database import Database
from qts.domain import Account, Holding, RefusedError, Side
from qts.orders import (
    LEDGER_CHANNEL,
    PositionMismatch,
    accept_holding,
    adopt_holding,
    check_reconciled,
    external_fill,
    list_baseline,
    load_baseline,
)
from qts.orders.ledger_values import find_mismatches
from qts.risk import StopRecord, load_stop_records
from tests.orders.kit import START, SYMBOL, OrderKit

D = Decimal
OTHER = "KRW-ETH"
SYMBOLS = ("KRW-BTC", "KRW-ETH", "KRW-XRP")
QUANTITIES = st.dictionaries(
    st.sampled_from(SYMBOLS), st.decimals(D("0.1"), D(100), places=1), max_size=3
)


def account(holdings: dict[str, Decimal]) -> Account:
    return Account(
        cash=D(0),
        holdings=tuple(
            Holding(symbol=s, quantity=q, average_price=D(1)) for s, q in holdings.items()
        ),
    )


def rows(quantities: dict[str, Decimal]) -> list[dict[str, object]]:
    return [{"symbol": s, "quantity": q} for s, q in quantities.items()]


@given(QUANTITIES, QUANTITIES)
def test_position_and_baseline_make_the_holding(
    positions: dict[str, Decimal], baseline: dict[str, Decimal]
) -> None:
    both = {s: positions.get(s, D(0)) + baseline.get(s, D(0)) for s in {*positions, *baseline}}
    assert find_mismatches(account(both), rows(positions), baseline) == ()  # type: ignore[arg-type]


@given(QUANTITIES, QUANTITIES, QUANTITIES)
def test_mismatches_are_what_the_venue_has_more_or_less(
    positions: dict[str, Decimal], baseline: dict[str, Decimal], held: dict[str, Decimal]
) -> None:
    found = find_mismatches(account(held), rows(positions), baseline)  # type: ignore[arg-type]
    more = {each.symbol: each.venue - each.ours for each in found}
    for symbol in SYMBOLS:
        expected = held.get(symbol, D(0)) - positions.get(symbol, D(0)) - baseline.get(symbol, D(0))
        assert more.get(symbol, D(0)) == expected


async def codes(kit: OrderKit) -> list[str]:
    return [entry.code for entry in await kit.fail_safe.log()]


async def test_first_holdings_are_a_baseline_reported_once(kit: OrderKit) -> None:
    await kit.database.execute("DELETE FROM account_baseline")  # as before the first start
    kit.venue.external = {SYMBOL: D(3), OTHER: D(7)}
    for _ in range(3):
        assert (await kit.reconciler.reconcile_now()).differences == ()
    assert await load_baseline(kit.database, kit.venue.key) == kit.venue.external
    assert [each.symbol for each in await list_baseline(kit.database)] == [SYMBOL, OTHER]
    assert await codes(kit) == ["GR041"]
    assert (await kit.fail_safe.now()).state == "NORMAL"
    assert (await kit.position())[0] == 0
    assert await check_reconciled(kit.context, START)


async def test_baseline_follows_trades_by_hand_where_qts_does_not_trade(kit: OrderKit) -> None:
    for quantity in (D(3), D(2), D(9), D(0)):
        kit.venue.external = {SYMBOL: quantity}
        assert (await kit.reconciler.reconcile_now()).differences == ()
        expected = {SYMBOL: quantity} if quantity else {}
        assert await load_baseline(kit.database, kit.venue.key) == expected
    assert await codes(kit) == []


async def test_entry_beside_a_baseline_counts_alone(kit: OrderKit) -> None:
    kit.venue.external = {SYMBOL: D(3)}
    await kit.reconciler.reconcile_now()
    kit.venue.trade(await kit.order(), D(2), D(100))
    assert (await kit.reconciler.reconcile_now()).differences == ()
    assert (await kit.position())[0] == 2
    assert await load_baseline(kit.database, kit.venue.key) == {SYMBOL: D(3)}
    assert await check_reconciled(kit.context, START)


@pytest.mark.parametrize("sold", [False, True])
async def test_difference_in_a_traded_symbol_is_a_difference(kit: OrderKit, sold: bool) -> None:
    kit.venue.external = {SYMBOL: D(3)}
    await kit.reconciler.reconcile_now()
    kit.venue.trade(await kit.order(), D(2), D(100))
    if sold:
        kit.venue.trade(await kit.order(side=Side.SELL), D(2), D(100))
    await kit.reconciler.reconcile_now()
    position = D(0) if sold else D(2)
    kit.venue.external = {SYMBOL: D(1)}
    for _ in range(2):
        report = await kit.reconciler.reconcile_now()
        assert report.differences == (PositionMismatch(SYMBOL, position + 3, position + 1),)
    assert await accept_holding(kit.database, kit.venue.key, SYMBOL) == 1
    assert (await kit.reconciler.reconcile_now()).differences == ()
    assert (await kit.position())[0] == position


async def test_a_holding_below_the_position_is_not_accepted(kit: OrderKit) -> None:
    kit.venue.trade(await kit.order(), D(2), D(100))
    kit.venue.external = {SYMBOL: D(-1)}
    await kit.reconciler.reconcile_now()
    with pytest.raises(RefusedError, match=r"adopt KRW-BTC -1 --price"):
        await accept_holding(kit.database, kit.venue.key, SYMBOL)


async def adopt(kit: OrderKit, change: object, *, stops: bool = False) -> StopRecord | None:
    return await adopt_holding(
        kit.database,
        kit.bus,
        kit.venue.key,
        change,  # type: ignore[arg-type]
        stops=stops,
        clock=kit.clock,
    )


@pytest.mark.parametrize("stops", [False, True])
async def test_baseline_is_adopted_at_its_cost(kit: OrderKit, stops: bool) -> None:
    kit.venue.external = {SYMBOL: D(3)}
    await kit.reconciler.reconcile_now()
    record = await adopt(kit, SYMBOL, stops=stops)
    assert await kit.position() == (D(3), D(1), D(0))  # the venue says that it cost 1
    assert await load_baseline(kit.database, kit.venue.key) == {}
    assert (await kit.reconciler.reconcile_now()).differences == ()
    stored = (await load_stop_records(kit.database, kit.venue.key))[SYMBOL]
    assert record == stored
    assert (stored.watched, stored.from_market, stored.state) == (stops, stops, None)
    fills = await kit.database.fetch("SELECT counted, realised_pnl FROM fill")
    assert [tuple(row) for row in fills] == [(True, 0)]


async def test_stops_are_asked_for_later(kit: OrderKit) -> None:
    kit.venue.external = {SYMBOL: D(3)}
    await kit.reconciler.reconcile_now()
    await adopt(kit, SYMBOL)
    with pytest.raises(RefusedError, match="is a position of QTS"):
        await adopt(kit, SYMBOL)
    await kit.clock.sleep(0)
    record = await adopt(kit, SYMBOL, stops=True)
    assert record is not None
    assert record.watched
    assert (await kit.position())[0] == 3


async def test_part_of_a_baseline_is_adopted(kit: OrderKit) -> None:
    kit.venue.external = {SYMBOL: D(3)}
    await kit.reconciler.reconcile_now()
    await adopt(kit, external_fill(SYMBOL, D(2), D(80)))
    assert await kit.position() == (D(2), D(80), D(0))
    assert await load_baseline(kit.database, kit.venue.key) == {SYMBOL: D(1)}
    assert (await kit.reconciler.reconcile_now()).differences == ()
    await adopt(kit, external_fill(SYMBOL, D(-2), D(80)))
    assert (await kit.position())[0] == 0
    with pytest.raises(RefusedError, match="negative"):
        await adopt(kit, external_fill(SYMBOL, D(-2), D(80)))


async def test_a_watched_position_does_not_grow_at_cost(kit: OrderKit) -> None:
    """Its stops would count the new part from its cost, and might sell everything at once."""
    kit.venue.external = {SYMBOL: D(3)}
    await kit.reconciler.reconcile_now()
    kit.venue.trade(await kit.order(), D(2), D(100))
    await kit.reconciler.reconcile_now()
    with pytest.raises(RefusedError, match="adopt more with --stops"):
        await adopt(kit, SYMBOL)
    assert await load_baseline(kit.database, kit.venue.key) == {SYMBOL: D(3)}
    record = await adopt(kit, SYMBOL, stops=True)
    assert record is not None
    assert (record.quantity, record.from_market) == (5.0, True)


@pytest.mark.parametrize(
    ("held", "symbol", "told"),
    [
        ({}, SYMBOL, "no holding from before QTS"),
        ({OTHER: D(1)}, "KRW-ETC", "did you mean KRW-ETH"),
    ],
)
async def test_what_is_not_held_is_not_adopted(
    kit: OrderKit, held: dict[str, Decimal], symbol: str, told: str
) -> None:
    kit.venue.external = held
    await kit.reconciler.reconcile_now()
    with pytest.raises(RefusedError, match=told):
        await adopt(kit, symbol)


async def test_an_adoption_is_notified(kit: OrderKit, database: Database) -> None:
    kit.venue.external = {SYMBOL: D(3)}
    await kit.reconciler.reconcile_now()
    async with database.listen(LEDGER_CHANNEL) as listener:
        await anext(listener)
        await adopt(kit, SYMBOL)
        assert (await anext(listener)).payload == SYMBOL  # type: ignore[union-attr]
