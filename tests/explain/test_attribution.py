"""Attribution: the parts add up to the won, and each planted cause is in its own part alone."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.brokers import FeesConfig, PaperConfig
from qts.domain import MANUAL, Side, Tick
from qts.explain import DayLedger, DayOrder
from qts.explain.attribution import earned, last_prices, needed_moments
from qts.explain.ledger import exact, pair_orders
from qts.explain.replayed import Prices, RecordedQuote, read_prices
from qts.pipeline import SignalOutcome
from qts.risk import RiskLimitsConfig
from tests.backtest.tapes import BEGIN, prices, tape, walk
from tests.backtest.test_backtest import scripted
from tests.explain.ledgers import SYMBOL, D, backtest_ledger, explained, fill, items_of, order

BUY, SELL = Side.BUY, Side.SELL
SYMBOLS = ("005930", "KRW-BTC")
RISING = prices([10_000 + 10 * second for second in range(40)])  # never twice the same price


# --- the law --------------------------------------------------------------------------------------

amounts = st.decimals(min_value="0.00000001", max_value=10**6, places=8)
times = st.floats(0, 60).map(lambda seconds: BEGIN + round(seconds, 6))


@st.composite
def orders(draw: st.DrawFn) -> DayOrder:
    side, symbol = draw(st.sampled_from(Side)), draw(st.sampled_from(SYMBOLS))
    at = draw(times)
    fills = tuple(
        fill(
            side, draw(amounts), draw(amounts), at + draw(st.integers(0, 5)), draw(amounts), symbol
        )
        for _ in range(draw(st.integers(0, 3)))
    )
    return DayOrder(
        strategy=draw(st.sampled_from(("a", "risk", MANUAL))),
        symbol=symbol,
        side=side,
        decided_at=at,
        reached_at=at + draw(st.floats(0, 2)),
        quantity=draw(amounts),
        asked=draw(st.sampled_from(("", "3", "0.05 of the equity"))),
        limit=draw(st.none() | amounts),
        signal_id=draw(st.none() | st.integers(1, 3).map(lambda number: UUID(int=number))),
        fills=fills,
        is_earlier=draw(st.booleans()),
    )


@st.composite
def refusals(draw: st.DrawFn) -> SignalOutcome:
    return SignalOutcome(
        strategy_key=draw(st.sampled_from(("a", "risk"))),
        symbol=draw(st.sampled_from(SYMBOLS)),
        side=draw(st.sampled_from(Side)),
        at=draw(times),
        asked="",
        reason=draw(st.sampled_from(("", "G_MAX_VALUE"))),
    )


ledgers = st.builds(
    DayLedger, orders=st.lists(orders(), max_size=6), refused=st.lists(refusals(), max_size=3)
)


@given(live=ledgers, backtest=ledgers, ticks=st.integers(0, 50).map(lambda n: walk(n, 60, SYMBOLS)))
def test_the_parts_add_up_to_the_difference(
    live: DayLedger, backtest: DayLedger, ticks: list[Tick]
) -> None:
    known = read_prices(tape(ticks), needed_moments((live, backtest)))
    items = items_of(live, backtest, known, FeesConfig())
    last = last_prices((live, backtest), known)
    with exact():
        assert sum(item.won for item in items) == earned(live, last) - earned(backtest, last)


@given(day=ledgers)
def test_a_day_that_equals_its_backtest_has_no_parts(day: DayLedger) -> None:
    strategies = [each for each in day.orders if each.strategy != MANUAL]
    unique = DayLedger(
        orders=[replace(each, signal_id=None, is_earlier=False) for each in strategies]
    )
    known = read_prices(tape(walk(1, 60, SYMBOLS)), needed_moments((unique,)))
    assert items_of(unique, unique, known, FeesConfig()) == []


# --- planted causes -------------------------------------------------------------------------------


def test_a_planted_delay_is_a_delay_and_nothing_else() -> None:
    backtest = backtest_ledger(scripted((2,), (20,)), RISING)
    live = backtest_ledger(
        scripted((2,), (20,)), RISING, paper=PaperConfig(latency_ms=4_000, slippage_ticks=1)
    )
    same = backtest_ledger(
        scripted((2,), (20,)), RISING, paper=PaperConfig(latency_ms=1, slippage_ticks=1)
    )
    assert explained(live, same, RISING) == {"delay": explained(live, same, RISING)["delay"]}
    bought, sold = backtest.orders
    assert (bought.filled, sold.filled) == (D(49), D(49))
    # Both 3 s later at 10 won a second: dearer by 30, and sold for 30 more; fees follow the price.
    fees = live.fees - same.fees
    assert explained(live, same, RISING).get("delay", 0) == -fees


def test_a_delay_of_one_order_costs_the_move_of_the_market() -> None:
    free = FeesConfig(krx_fee=0, krx_sale_tax=0)
    backtest = backtest_ledger(scripted((2,)), RISING, costs=free)
    live = backtest_ledger(scripted((2,)), RISING, costs=free, paper=PaperConfig(latency_ms=4_000))
    assert explained(live, backtest, RISING, free) == {"delay": D(-3 * 10 * 49)}


def test_a_planted_fee_is_a_cost_and_nothing_else() -> None:
    dear = FeesConfig(krx_fee=0.01)
    backtest = backtest_ledger(scripted((2,), (20,)), RISING)
    live = backtest_ledger(scripted((2,), (20,)), RISING, costs=dear)
    assert explained(live, backtest, RISING) == {"cost": backtest.fees - live.fees}


@pytest.mark.parametrize("side", ["run", "backtest"])
def test_a_planted_refusal_is_the_gates_and_nothing_elses(side: str) -> None:
    """The entry is refused by code; the exit that only the other side has belongs to it."""
    limits = RiskLimitsConfig(orders_per_day=2)
    usual = backtest_ledger(scripted((2, 20), (10, 30)), RISING)
    refused = backtest_ledger(scripted((2, 20), (10, 30)), RISING, limits=limits)
    assert [len(each.orders) for each in (usual, refused)] == [4, 2]
    live, backtest = (refused, usual) if side == "run" else (usual, refused)
    earned_by_it = sum(each.side.sign * -each.value - each.fees for each in usual.orders[2:])
    sign = -1 if side == "run" else 1
    assert explained(live, backtest, RISING) == {"gate": sign * earned_by_it}
    known = read_prices(tape(RISING), needed_moments((live, backtest)))
    reasons = [each.reason for each in items_of(live, backtest, known, FeesConfig())]
    assert all("G_DAILY_ORDERS" in reason for reason in reasons)


def test_a_signal_of_one_side_is_a_signal_with_its_exit() -> None:
    live = backtest_ledger(scripted((2,), (10,)), RISING)
    assert list(explained(live, DayLedger(), RISING)) == ["signal"]
    assert list(explained(DayLedger(), live, RISING)) == ["signal"]


def test_a_size_that_is_cut_is_the_gates_with_the_exit_of_it() -> None:
    usual = backtest_ledger(scripted((2,), (20,)), RISING)
    cut = backtest_ledger(
        scripted((2,), (20,)), RISING, limits=RiskLimitsConfig(max_order_value=200_000)
    )
    assert [each.quantity for each in cut.orders] == [19, 19]
    found = explained(cut, usual, RISING)
    assert list(found) == ["gate"]


def test_a_worse_price_and_a_part_that_is_not_filled_are_fills() -> None:
    free = FeesConfig(krx_fee=0, krx_sale_tax=0)
    backtest = backtest_ledger(scripted((2,)), RISING, costs=free)
    slipped = backtest_ledger(
        scripted((2,)), RISING, costs=free, paper=PaperConfig(latency_ms=1, slippage_ticks=2)
    )
    assert explained(slipped, backtest, RISING, free) == {"fill": D(-2 * 10 * 49)}
    (whole,) = backtest.orders
    (only,) = whole.fills
    part = replace(whole, fills=(replace(only, quantity=D(9)),))
    last = 10_000 + 10 * 39
    assert explained(DayLedger(orders=[part]), backtest, RISING, free) == {
        "fill": -40 * (last - only.price)
    }
    none = replace(whole, fills=(), ended="REJECTED")
    assert explained(DayLedger(orders=[none]), backtest, RISING, free) == {
        "fill": -49 * (last - only.price)
    }


def test_the_exit_of_a_part_that_was_not_filled_belongs_to_the_fill() -> None:
    free = FeesConfig(krx_fee=0, krx_sale_tax=0)
    bought = fill(BUY, D(10), D(10_000), BEGIN, D(0))
    sold = fill(SELL, D(10), D(10_100), BEGIN + 10, D(0))
    backtest = DayLedger(orders=[order(BUY, 10, bought), order(SELL, 10, sold, at=BEGIN + 10)])
    live = DayLedger(
        orders=[
            order(BUY, 10, replace(bought, quantity=D(4))),
            order(SELL, 4, replace(sold, quantity=D(4)), at=BEGIN + 10),
        ]
    )
    ticks = prices([10_000] * 10 + [10_100] * 5)
    assert explained(live, backtest, ticks, free) == {"fill": D(-6 * 100)}


def test_a_signal_that_asks_for_another_size_is_a_signal() -> None:
    bought = fill(BUY, D(10), D(10_000), BEGIN, D(1))
    backtest = DayLedger(orders=[order(BUY, 10, bought, asked="10")])
    live = DayLedger(orders=[order(BUY, 4, replace(bought, quantity=D(4)), asked="4")])
    free = FeesConfig(krx_fee=0, krx_sale_tax=0)
    assert explained(live, backtest, prices([10_000, 11_000]), free) == {"signal": D(-6_000)}


def test_a_size_that_follows_the_equity_is_the_gates() -> None:
    """Both asked for the same share of it, and it was not the same."""
    bought = fill(BUY, D(10), D(10_000), BEGIN, D(1))
    share = "0.05 of the equity"
    backtest = DayLedger(orders=[order(BUY, 10, bought, asked=share)])
    live = DayLedger(orders=[order(BUY, 9, replace(bought, quantity=D(9)), asked=share)])
    free = FeesConfig(krx_fee=0, krx_sale_tax=0)
    assert explained(live, backtest, prices([10_000, 11_000]), free) == {"gate": D(-1_000)}


def bought_and_sold(quantity: int = 10) -> list[DayOrder]:
    """A purchase at 10,000 and a sale at 10,100, ten seconds later."""
    bought = fill(BUY, D(quantity), D(10_000), BEGIN, D(0))
    sold = fill(SELL, D(quantity), D(10_100), BEGIN + 10, D(0))
    return [order(BUY, quantity, bought), order(SELL, quantity, sold, at=BEGIN + 10)]


def by_hand(side: Side, quantity: int, price: int, second: int) -> DayOrder:
    at = BEGIN + second
    filled = fill(side, D(quantity), D(price), at, D(0))
    return order(side, quantity, filled, at=at, strategy=MANUAL, reason="cli ann: lunch")


STEPS = prices([10_000] * 5 + [10_050] * 5 + [10_100] * 5 + [10_200])
NO_FEES = FeesConfig(krx_fee=0, krx_sale_tax=0)


def test_a_planted_manual_order_is_manual_and_nothing_else() -> None:
    backtest = DayLedger(orders=bought_and_sold())
    manual = by_hand(BUY, 3, 10_050, 6)
    live = DayLedger(orders=[*bought_and_sold(), manual])
    assert explained(live, backtest, STEPS, NO_FEES) == {"manual": D(3 * 150)}
    known = read_prices(tape(STEPS), needed_moments((live, backtest)))
    (item,) = items_of(live, backtest, known, NO_FEES)
    assert (item.strategy, item.reason) == (MANUAL, "manual order of cli ann: lunch")


def test_a_position_closed_by_hand_takes_the_exit_of_the_backtest_with_it() -> None:
    backtest = DayLedger(orders=bought_and_sold())
    live = DayLedger(orders=[bought_and_sold()[0], by_hand(SELL, 10, 10_050, 6)])
    assert explained(live, backtest, STEPS, NO_FEES) == {"manual": D(-10 * 50)}


def test_a_part_closed_by_hand_takes_that_part_of_the_exit_with_it() -> None:
    backtest = DayLedger(orders=bought_and_sold())
    bought, sold = bought_and_sold()
    rest = replace(sold, quantity=D(6), fills=(replace(sold.fills[0], quantity=D(6)),))
    live = DayLedger(orders=[bought, by_hand(SELL, 4, 10_050, 6), rest])
    assert explained(live, backtest, STEPS, NO_FEES) == {"manual": D(-4 * 50)}


def test_what_only_the_run_held_is_manual_from_where_it_was_closed_by_hand() -> None:
    """The entry is a signal of the run; its end was the operator's."""
    live = DayLedger(orders=[bought_and_sold()[0], by_hand(SELL, 10, 10_050, 6)])
    assert explained(live, DayLedger(), STEPS, NO_FEES) == {
        "signal": D(10 * 200),  # held to the last price
        "manual": D(-10 * 150),
    }


def test_an_order_from_before_the_run_has_no_pair_and_says_so() -> None:
    (bought, _) = bought_and_sold()
    live = DayLedger(orders=[replace(bought, is_earlier=True)])
    backtest = DayLedger(orders=[bought])
    known = read_prices(tape(STEPS), needed_moments((live, backtest)))
    ours, theirs = items_of(live, backtest, known, NO_FEES)
    assert (ours.part, theirs.part) == ("signal", "signal")
    assert "open since before the run" in ours.reason
    assert ours.won == -theirs.won == 10 * 200


# --- pairs and prices -----------------------------------------------------------------------------


def test_orders_of_one_signal_are_a_pair_whatever_their_time() -> None:
    name = UUID(int=7)
    ours = [order(BUY, 1, at=BEGIN, signal_id=name), order(BUY, 1, at=BEGIN + 1)]
    theirs = [order(BUY, 1, at=BEGIN + 2), order(BUY, 1, at=BEGIN + 90, signal_id=name)]
    assert pair_orders(ours, theirs, 5.0) == [(ours[0], theirs[1]), (ours[1], theirs[0])]


def test_orders_far_apart_are_no_pair() -> None:
    (ours,), (theirs,) = [order(BUY, 1, at=BEGIN)], [order(BUY, 1, at=BEGIN + 5.1)]
    assert pair_orders([ours], [theirs], 5.0) == [(ours, None), (None, theirs)]
    other = order(BUY, 1, at=BEGIN, strategy="another")
    assert len(pair_orders([ours], [other], 5.0)) == 2


def test_quotes_are_the_last_at_or_before_a_moment() -> None:
    ticks = prices([100, 110, 120])
    moments = {SYMBOL: [BEGIN - 1, BEGIN, BEGIN + 0.9, BEGIN + 1, BEGIN + 50], "000660": [BEGIN]}
    found = read_prices(tape(ticks), moments)
    assert list(found) == [SYMBOL]
    assert found[SYMBOL] == Prices(
        100.0,
        120.0,
        {
            BEGIN: RecordedQuote(100, 0, 0),
            BEGIN + 0.9: RecordedQuote(100, 0, 0),
            BEGIN + 1: RecordedQuote(110, 0, 0),
            BEGIN + 50: RecordedQuote(120, 0, 0),
            BEGIN - 1: RecordedQuote(100, 0, 0),
        },
    )
    assert RecordedQuote(100, 99, 101).of(BUY) == Decimal("101.0")
    assert RecordedQuote(100, 99, 101).of(SELL) == Decimal("99.0")
    assert RecordedQuote(100, 0, 0).of(SELL) == 100
