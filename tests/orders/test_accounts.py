"""Two accounts on one database: neither sees, counts, switches or executes what is the other's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

import pytest

from qts.database import Database
from qts.domain import AccountKey, ManualClock
from qts.orders import list_orders, list_positions, load_account_state
from qts.outbox import TRADE_COMMAND, PostgresBus
from qts.outbox import testing as outbox_testing
from qts.outbox.claims import Claims
from qts.risk import SafetyState
from tests.orders.fake_venue import Venue
from tests.orders.kit import PRICE, STREAMS, SYMBOL, OrderKit

Pair = tuple[OrderKit, OrderKit]


@pytest.fixture
async def pair(database: Database, clock: ManualClock) -> AsyncIterator[Pair]:
    """Two traders of one broker, each on an account of its own."""
    async with PostgresBus.open(database, STREAMS) as bus:
        kits = []
        for account in ("first", "second"):
            venue = Venue(clock)
            venue.key = AccountKey.of(venue.name, account)
            kits.append(OrderKit(database, bus, venue, clock))
            await kits[-1].open()
        yield kits[0], kits[1]


async def trade(pair: Pair) -> None:
    """Submit to both accounts, let both work, and judge by what each venue received."""
    first, second = pair
    for _ in range(5):
        await first.submit(quantity=Decimal(1))
        await second.submit(quantity=Decimal(7))
    handled = [*await first.work(), *await second.work()]
    assert [one.result for one in handled] == ["done"] * 10
    assert [order.quantity for order in first.venue.placed] == [1] * 5
    assert [order.quantity for order in second.venue.placed] == [7] * 5


async def test_each_executes_its_own_commands(pair: Pair) -> None:
    await trade(pair)


async def test_a_claim_without_the_filter_is_noticed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unfiltered(Claims):
        def __init__(self, stream: str, config: object, name: str, _accounts: object) -> None:
            super().__init__(stream, config, name, None)  # type: ignore[arg-type]

    monkeypatch.setattr(outbox_testing, "Claims", Unfiltered)
    with pytest.raises(AssertionError):
        await trade(pair)


async def test_an_attempt_of_another_account_is_refused_and_not_moved(pair: Pair) -> None:
    first, second = pair
    submitted = await first.submit()
    handled = await outbox_testing.run_due(
        first.database,
        TRADE_COMMAND,
        STREAMS[TRADE_COMMAND],
        second.dispatcher,
        str(first.venue.key),
    )
    assert [(one.result, one.code) for one in handled] == [("retry", "OTHER_ACCOUNT")]
    assert (await first.attempt(submitted.attempt_id))["status"] == "PREPARED"
    assert second.venue.placed == []


async def test_the_same_decision_is_an_order_in_each_account(pair: Pair) -> None:
    first, second = pair
    submitted = await first.submit()
    row = await first.database.fetchrow(
        "SELECT signal_id FROM order_intent WHERE id = $1", submitted.intent_id
    )
    assert row is not None
    assert (await second.submit(signal_id=row["signal_id"])).is_new
    assert not (await first.submit(signal_id=row["signal_id"])).is_new


async def test_equal_ids_of_the_venue_are_different_orders(pair: Pair) -> None:
    for kit, quantity in zip(pair, (2, 3), strict=True):
        name = await kit.order(quantity=Decimal(quantity))
        assert name == "V1"
        await kit.context.ledger.record_fill(kit.venue.trade(name, Decimal(quantity), PRICE))
    assert [(await kit.position())[0] for kit in pair] == [2, 3]
    for kit, quantity in zip(pair, (2, 3), strict=True):
        (row,) = await list_positions(kit.database, kit.venue.key)
        assert row.quantity == quantity
        assert len(await list_orders(kit.database, kit.venue.key)) == 1
    assert len(await list_positions(pair[0].database, None)) == 2


async def test_limits_are_counted_per_account(pair: Pair) -> None:
    first, second = pair
    for _ in range(3):
        await first.order()
    now = first.clock.now()
    counts = [
        (await load_account_state(kit.database, kit.venue.key, now - timedelta(1), now))
        for kit in (first, second)
    ]
    assert [state.orders_today for state in counts] == [3, 0]
    assert [len(state.pending) for state in counts] == [3, 0]


@pytest.mark.parametrize("stopped", [0, 1])
async def test_a_switch_stops_its_account_alone(pair: Pair, stopped: int) -> None:
    await pair[stopped].kill.set(False, "test")
    assert (await pair[stopped].submit()).stopped == "KILL_SWITCH"
    assert (await pair[1 - stopped].submit()).stopped == ""


@pytest.mark.parametrize("locked", [0, 1])
async def test_a_lockdown_locks_its_account_alone(pair: Pair, locked: int) -> None:
    await pair[locked].fail_safe.trip("FS110", "blocked")
    assert (await pair[1 - locked].fail_safe.now()).state is SafetyState.NORMAL
    assert (await pair[locked].submit()).stopped == "SAFETY_LOCKDOWN"
    assert (await pair[1 - locked].submit()).stopped == ""


async def test_a_suspension_stops_its_account_alone(pair: Pair) -> None:
    first, second = pair
    async with first.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO market_state (broker, account, symbol, trade_status, reason_code,"
            " suspended_at) VALUES ($1, $2, $3, 'SUSPENDED', 'BY_HAND', now())",
            *first.venue.key,
            SYMBOL,
        )
    for kit in pair:
        await kit.submit()
        await kit.work()
    assert (len(first.venue.placed), len(second.venue.placed)) == (0, 1)
