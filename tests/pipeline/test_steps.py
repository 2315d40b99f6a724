"""The five steps over one value: each only takes away, and bad data stops the cycle."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr, replace

from qts.domain import (
    Account,
    Instruments,
    IntentType,
    OrderSnapshot,
    OrderType,
    Position,
    Side,
    krx_instrument,
)
from qts.pipeline import (
    Cycle,
    DecisionPolicy,
    StepFailedError,
    decide,
    evaluate,
    extract,
    transform,
)
from qts.risk import RiskLimitsConfig, SafetyState, StrategyLimits
from qts.strategies import Signal, View
from tests.instruments import LISTED
from tests.pipeline.portfolios import NOW, signal, tick, view

LIMITS = RiskLimitsConfig().exact
NAN = Decimal("NaN")


def cycle_of(seen: View) -> Cycle:
    return transform(extract(Cycle(number=1, strategy_key="s", started_at=NOW), seen))


def evaluated(wanted: Signal, seen: View | None = None) -> Decimal:
    (found,) = evaluate(cycle_of(seen or view()), [wanted], LIMITS, LISTED).evaluations
    return found.final_qty


def unchecked(field: str, value: Decimal) -> Signal:
    """A signal with a value that `Signal` refuses: the steps do not rely on its checks."""
    force_setattr(made := signal(type=OrderType.LIMIT), field, value)
    return made


@pytest.mark.parametrize(
    "seen",
    [
        replace(view(), positions={"A": Position("B", Decimal(1), Decimal(1))}),
        replace(view(), positions={"A": Position("A", NAN, Decimal(1))}),
        replace(view(), positions={"A": Position("A", Decimal(1), Decimal(-1))}),
        replace(view(), account=Account(cash=NAN, holdings=())),
    ],
)
def test_world_that_does_not_hold_together_is_not_extracted(seen: View) -> None:
    with pytest.raises(StepFailedError) as caught:
        cycle_of(seen)
    assert caught.value.code == "FS010"


@pytest.mark.parametrize(("equity", "code"), [(NAN, "FS020"), (Decimal(0), "FS050")])
def test_equity_that_is_none_stops_the_cycle(equity: Decimal, code: str) -> None:
    with pytest.raises(StepFailedError) as caught:
        cycle_of(replace(view(), equity=equity))
    assert caught.value.code == code


def test_figures_of_what_is_held() -> None:
    calc = cycle_of(view(tick(price=11_000), held={"005930": (10, 10_000)}, cash="890000")).calc
    assert calc is not None
    assert calc.values == {"005930": 110_000}
    assert calc.total_exposure == 110_000
    assert calc.total_equity == 1_000_000


def test_without_a_quantity_it_is_one_whole_order() -> None:
    assert evaluated(signal()) == 49  # 500,000 won at an ask of 10,010


def test_sale_without_a_quantity_is_all_that_is_held() -> None:
    seen = view(held={"005930": (7, 10_000)})
    assert evaluated(signal(side=Side.SELL, intent_type=IntentType.EXIT_SIGNAL), seen) == 7


@pytest.mark.parametrize(
    "wanted",
    [
        signal(quantity=0),
        signal(side=Side.SELL),
        signal(symbol="999999"),
        unchecked("quantity", NAN),
        unchecked("quantity", Decimal(-3)),
        unchecked("price", Decimal(0)),
    ],
)
def test_what_makes_no_sense_comes_to_nothing(wanted: Signal) -> None:
    assert evaluated(wanted) == 0


def test_bought_and_sold_at_once_is_neither() -> None:
    both = [signal(), signal(side=Side.SELL)]
    seen = view(held={"005930": (7, 10_000)})
    found = evaluate(cycle_of(seen), both, LIMITS, LISTED).evaluations
    assert [each.final_qty for each in found] == [0, 0]
    assert all("GR030" in each.reason for each in found)


def test_strategy_that_gives_something_else_stops_the_cycle() -> None:
    with pytest.raises(StepFailedError, match="not a Signal"):
        evaluate(cycle_of(view()), ["buy"], LIMITS, LISTED)  # type: ignore[list-item]


@given(
    st.sampled_from(Side),
    st.none() | st.decimals(0, 100_000, places=2),
    st.integers(0, 100),
    st.floats(1_000, 1_000_000),
)
def test_each_step_only_takes_away(
    side: Side, quantity: Decimal | None, held: int, price: float
) -> None:
    seen = view(tick(price=price), held={"005930": (held, 10_000)} if held else {})
    (found,) = evaluate(
        cycle_of(seen), [signal(side=side, quantity=quantity)], LIMITS, LISTED
    ).evaluations
    assert 0 <= found.final_qty <= found.allowed_qty <= found.recommended_qty
    assert found.final_qty == found.final_qty.to_integral_value()
    if side is Side.SELL:
        assert found.final_qty <= held
    elif found.price is not None:
        assert found.final_qty * found.price <= LIMITS.max_order_value
        room = seen.equity * LIMITS.max_symbol_exposure
        assert found.final_qty * found.price <= room


@pytest.mark.parametrize(
    ("leave", "acts"),
    [
        (DecisionPolicy(), True),
        (DecisionPolicy(mode="safe"), False),
        (DecisionPolicy(mode="paused"), False),
        (DecisionPolicy(safety=SafetyState.WARNING), True),
        (DecisionPolicy(safety=SafetyState.FAIL), False),
        (DecisionPolicy(safety=SafetyState.LOCKDOWN), False),
    ],
)
def test_nothing_is_decided_where_nothing_may_be_done(leave: DecisionPolicy, acts: bool) -> None:
    (found,) = decide(evaluate(cycle_of(view()), [signal()], LIMITS, LISTED), leave).decisions
    assert (found.proposal is not None) is acts
    assert bool(found.reason) is not acts


def test_lockdown_lets_exits_through() -> None:
    seen = view(held={"005930": (7, 10_000)})
    leaving = signal(side=Side.SELL, intent_type=IntentType.EXIT_STOPLOSS)
    cycle = evaluate(cycle_of(seen), [leaving], LIMITS, LISTED)
    (found,) = decide(cycle, DecisionPolicy(safety=SafetyState.LOCKDOWN)).decisions
    assert found.action == "SELL"


def test_same_signal_is_the_same_order() -> None:
    made = [
        decide(evaluate(cycle_of(view()), [signal()], LIMITS, LISTED), DecisionPolicy())
        for _ in range(2)
    ]
    one, two = (each.decisions[0].proposal for each in made)
    assert one is not None
    assert two is not None
    assert one.signal_id == two.signal_id
    later = (
        decide(
            evaluate(cycle_of(view()), [signal(at=NOW.timestamp() + 1)], LIMITS, LISTED),
            DecisionPolicy(),
        )
        .decisions[0]
        .proposal
    )
    assert later is not None
    assert later.signal_id != one.signal_id


@pytest.mark.parametrize(("symbol", "refused"), [("005930", True), ("KRW-BTC", False)])
def test_gtc_is_refused_where_orders_end_with_the_day(symbol: str, refused: bool) -> None:
    wanted = signal(symbol=symbol, time_in_force="GTC")
    (found,) = evaluate(cycle_of(view(tick(symbol=symbol))), [wanted], LIMITS, LISTED).evaluations
    assert (found.final_qty == 0) is refused
    assert ("GTC: orders of 005930 end with the day" in found.reason) is refused


def test_a_symbol_that_is_not_listed_is_refused_with_the_nearest() -> None:
    known = Instruments([krx_instrument("005930", name="삼성전자")])
    wanted = signal(symbol="00593O")
    (found,) = evaluate(cycle_of(view(tick(symbol="00593O"))), [wanted], LIMITS, known).evaluations
    assert found.reason.startswith("G_INSTRUMENT 00593O: no list of the venue has it")
    assert found.reason.endswith("did you mean 005930 삼성전자?")


def test_sizes_are_multiples_of_the_lot_and_odd_lots_are_sold_with_the_rest() -> None:
    known = Instruments([krx_instrument("005930", lot=Decimal(10))])
    held = view(tick(price=1000), held={"005930": (25, 1000)})
    bought, part, all_of_it = (
        evaluate(cycle_of(held), [each], LIMITS, known).evaluations[0].final_qty
        for each in (
            signal(quantity=Decimal(27)),
            signal(side=Side.SELL, quantity=Decimal(14)),
            signal(side=Side.SELL),
        )
    )
    assert (bought, part, all_of_it) == (Decimal(20), Decimal(10), Decimal(25))


def test_a_signal_is_cut_to_the_capital_of_its_strategy() -> None:
    own = StrategyLimits(capital=Decimal(500_000), max_order_value=Decimal(200_000))
    limits = replace(LIMITS, strategies={"s": own})
    held = {"B": Position("B", Decimal(4), Decimal(100_000))}
    seen = replace(view(tick(price=10_000)), positions=held)
    for owners, quantity in (({"B": "s"}, 9), ({"B": "other"}, 19), ({}, 19)):
        (found,) = evaluate(cycle_of(seen), [signal()], limits, LISTED, owners).evaluations
        assert found.final_qty == quantity


def test_open_entries_count_as_capital() -> None:
    limits = replace(LIMITS, strategies={"s": StrategyLimits(capital=Decimal(100_000))})
    order = OrderSnapshot(
        intent_id="1",
        symbol="B",
        side=Side.BUY,
        state="ACKED",
        filled=Decimal(0),
        remaining=Decimal(7),
        price=Decimal(10_000),
        strategy_key="s",
    )
    seen = replace(view(tick(price=10_000)), orders=(order,))
    (found,) = evaluate(cycle_of(seen), [signal()], limits, LISTED).evaluations
    assert found.final_qty == 2  # at the ask
