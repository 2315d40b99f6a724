"""Profit by strategy: every fill has one owner, and all of them together are the account."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qts.dashboard import load_report
from qts.database import Database
from qts.domain import MANUAL, STOPS, Fill, IntentType, ManualClock, Side
from qts.orders import (
    FiguresOfDay,
    FillOwners,
    PositionState,
    StrategyFigures,
    add_up,
    load_owned_fills,
    merged_profits,
    rounded_parts,
    strategy_profits,
)
from qts.outbox import PostgresBus
from qts.risk import KillSwitch
from tests.orders.fake_venue import Venue
from tests.orders.kit import START, STREAMS, OrderKit

D = Decimal
_names = itertools.count(1)
money = st.decimals(-(10**9), 10**9, allow_nan=False, places=7)
steps = st.lists(
    st.tuples(
        st.sampled_from(["A", "B"]),
        st.sampled_from(["one", "two", STOPS, MANUAL, ""]),
        st.sampled_from([IntentType.ENTRY, IntentType.EXIT_SIGNAL, IntentType.EXIT_MAE, ""]),
        st.sampled_from(Side),
        st.decimals("0.001", 9, places=3),
        st.integers(90, 110),
        st.decimals(0, 1, places=5),
    ),
    max_size=40,
)


@given(steps=steps)
def test_all_names_together_are_the_account(steps: list[Any]) -> None:
    owners, found = FillOwners(), dict[str, StrategyFigures]()
    positions: dict[str, PositionState] = {}
    for symbol, key, kind, side, quantity, price, fee in steps:
        fill = Fill(
            trade_id="",
            broker_order_id="",
            symbol=symbol,
            side=side,
            quantity=quantity,
            price=D(price),
            fee=fee,
            at=START,
        )
        before = positions.get(symbol, PositionState())
        after = positions[symbol] = before.apply(fill)
        owner = owners.owner(symbol, key, kind, is_flat=not after.quantity)
        assert owner not in ("", STOPS)
        if kind == IntentType.ENTRY and key in ("one", "two"):
            assert owner == key
        gain = after.realised_pnl - before.realised_pnl
        found.setdefault(owner, StrategyFigures()).add(gain, fee)
    account = sum((each.realised_pnl - each.fees for each in positions.values()), D(0))
    assert sum((each.net for each in found.values()), D(0)) == account
    profits = strategy_profits(found, {}, {}, {})
    realised = sum((each.realised for each in profits.values()), D(0))
    assert realised == account.quantize(D("0.01"))
    assert sum(each.fills for each in profits.values()) == len(steps)


@given(parts=st.dictionaries(st.text(max_size=3), money, max_size=8))
def test_rounded_parts_add_up_to_the_rounded_sum(parts: dict[str, Decimal]) -> None:
    rounded = rounded_parts(parts)
    total = sum(parts.values(), D(0))
    assert sum(rounded.values(), D(0)) == total.quantize(D("0.01"))
    assert all(abs(rounded[name] - parts[name]) <= D("0.01") for name in parts)


def test_an_exit_of_a_stop_belongs_to_the_strategy_that_entered() -> None:
    owners = FillOwners()
    assert owners.owner("A", "one", "ENTRY", is_flat=False) == "one"
    assert owners.owner("A", STOPS, "EXIT_MAE", is_flat=False) == "one"
    assert owners.owner("A", MANUAL, "EXIT_MANUAL", is_flat=True) == "one"
    assert owners.owner("A", "", "", is_flat=False) == MANUAL  # adopted
    assert owners.owner("A", STOPS, "EXIT_MAE", is_flat=True) == MANUAL
    assert owners.owner("A", "two", "ENTRY", is_flat=False) == "two"


def test_accounts_are_added_name_by_name() -> None:
    one = strategy_profits({"s": StrategyFigures(1, D(1), D(5))}, {}, {"s": 2}, {("s", "G_X"): 1})
    two = strategy_profits({}, {"s": (D(3), D(9))}, {MANUAL: 1}, {("s", "G_X"): 2})
    found = merged_profits([one, two])
    assert (found["s"].realised, found["s"].unrealised, found["s"].exposure) == (D(4), D(3), D(9))
    assert (found["s"].orders, found["s"].refusals, found[MANUAL].orders) == (2, {"G_X": 3}, 1)


async def agree(database: Database, venue: Venue, known: FiguresOfDay, clock: ManualClock) -> None:
    """Compare figures that were added to with those of all fills."""
    await known.update()
    fills = await load_owned_fills(database, venue.key, START, START + timedelta(days=1))
    today = [each for each in fills if each[0]["counted"] and each[0]["traded_at"] >= START]
    assert known.figures == add_up(today), clock.now()


stored = st.lists(
    st.tuples(
        st.sampled_from(["KRW-BTC", "KRW-ETH"]),
        st.sampled_from(["one", "two", STOPS, MANUAL]),
        st.sampled_from([IntentType.ENTRY, IntentType.EXIT_SIGNAL]),
        st.sampled_from(Side),
        st.integers(1, 4),
        st.integers(90, 110),
        st.sampled_from([0, 0, 5, 16]),  # hours to the next fill
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(  # the position is flat between two readings
    steps=[
        ("KRW-BTC", "one", IntentType.ENTRY, Side.BUY, 2, 100, 0),
        ("KRW-BTC", "one", IntentType.EXIT_SIGNAL, Side.SELL, 2, 100, 0),
        ("KRW-BTC", "two", IntentType.EXIT_SIGNAL, Side.SELL, 1, 100, 0),
    ]
)
@given(steps=stored)
async def test_the_ledger_gives_every_fill_to_its_owner(
    database: Database, steps: list[Any]
) -> None:
    """Of any period, whatever was open before it."""
    clock, owners = ManualClock(START), FillOwners()
    expected, positions = list[tuple[str, str]](), dict[str, PositionState]()
    async with PostgresBus.open(database, STREAMS) as bus:
        venue = Venue(clock, f"owned{next(_names)}")
        kit = OrderKit(database, bus, venue, clock, allow_short=True)
        await kit.open()
        for name in ("one", "two", STOPS):
            await KillSwitch(database, venue.key).set(True, "tests", "", name)
        since_start = FiguresOfDay(database, venue.key, START)
        for symbol, key, kind, side, quantity, price, hours in steps:
            order = await kit.order(
                symbol=symbol,
                side=side,
                quantity=D(quantity),
                price=D(price),
                strategy_key=key,
                intent_type=kind,
            )
            fill = venue.trade(order, D(quantity), D(price))
            await kit.context.ledger.record_fill(fill)
            after = positions[symbol] = positions.get(symbol, PositionState()).apply(fill)
            owner = owners.owner(symbol, key, kind, is_flat=not after.quantity)
            expected.append((fill.trade_id, owner))
            await clock.advance(hours * 3600 + 1)
            if hours or clock.now().second % 2:  # after one fill, or after several
                await agree(database, venue, since_start, clock)
    middle = START + (clock.now() - START) / 2
    for since in (START, middle):
        fills = await load_owned_fills(database, venue.key, since, clock.now())
        own = [(row["trade_id"], name) for row, name in fills if row["traded_at"] >= since]
        known = {row["trade_id"] for row, _ in fills if row["traded_at"] >= since}
        assert sorted(own) == sorted(each for each in expected if each[0] in known)
        total = await database.fetchval(
            "SELECT COALESCE(sum(realised_pnl - fee), 0) FROM fill"
            " WHERE broker = $1 AND account = $2 AND traded_at >= $3",
            *venue.key,
            since,
        )
        figures = add_up(each for each in fills if each[0]["traded_at"] >= since)
        assert sum((each.net for each in figures.values()), D(0)) == total
    report = await load_report(database, venue.key, START.date(), clock.now())
    assert sum((each.realised for each in report.strategies), D(0)) == report.realised
    assert sum((each.fees for each in report.strategies), D(0)) == report.fees


@pytest.mark.parametrize(("hours", "owners"), [(-1, {"two"}), (1, {"one", "two"})])
async def test_a_late_fill_lets_all_fills_of_the_day_be_read_again(
    database: Database, hours: int, owners: set[str]
) -> None:
    """It may be of the day before, and change who owns what was traded since."""
    clock = ManualClock(START)
    async with PostgresBus.open(database, STREAMS) as bus:
        venue = Venue(clock, f"owned{next(_names)}")
        kit = OrderKit(database, bus, venue, clock, allow_short=True)
        await kit.open()
        known = FiguresOfDay(database, venue.key, START)

        async def trade(key: str, kind: IntentType, at: datetime | None = None) -> None:
            await KillSwitch(database, venue.key).set(True, "tests", "", key)
            order = await kit.order(
                side=Side.SELL, price=D(100), strategy_key=key, intent_type=kind
            )
            fill = venue.trade(order, D(2), D(100), at=at or clock.now())
            await kit.context.ledger.record_fill(fill)
            await agree(database, venue, known, clock)
            await clock.advance(7200)

        await trade("one", IntentType.EXIT_SIGNAL)
        await trade("one", IntentType.EXIT_SIGNAL)
        assert set(known.figures) == {"one"}
        await trade("two", IntentType.ENTRY, START + timedelta(hours=hours))
        await trade("one", IntentType.EXIT_SIGNAL)
    assert set(known.figures) == owners
