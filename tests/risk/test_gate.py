"""The gate: one thing wrong is one refusal that names it, and nothing gets past."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.domain import (
    InstrumentClass,
    Instruments,
    IntentType,
    OrderType,
    Side,
    krx_instrument,
    unknown_instrument,
)
from qts.risk import (
    REASONS,
    ApprovedOrder,
    OrderProposal,
    PreTradeGate,
    QuoteSnapshot,
    Refusal,
    RiskLimitsConfig,
    RiskSnapshot,
    StrategyLimits,
    Switches,
)
from qts.risk.gate import RuleInput
from tests.instruments import LISTED
from tests.risk.rule_inputs import FACTS, NOW, PROPOSAL, facts, proposal

LIMITS = RiskLimitsConfig().exact
GATE = PreTradeGate(LIMITS)
NAN = Decimal("NaN")


def codes(asked: OrderProposal, known: RiskSnapshot, gate: PreTradeGate = GATE) -> set[str]:
    if known.instrument is FACTS.instrument:
        known = replace(known, instrument=LISTED[asked.symbol])
    answer = gate.check(asked, known)
    return {reason.code for reason in answer.reasons} if isinstance(answer, Refusal) else set()


def test_what_breaks_no_rule_is_approved_as_it_was_asked() -> None:
    answer = GATE.check(PROPOSAL, FACTS)
    assert isinstance(answer, ApprovedOrder)
    assert (answer.proposal, answer.at) == (PROPOSAL, NOW)


WRONG: list[tuple[str, OrderProposal, RiskSnapshot]] = [
    ("G_INSTRUMENT", PROPOSAL, facts(instrument=unknown_instrument("005930"))),
    ("G_INSTRUMENT", PROPOSAL, facts(instrument=krx_instrument("005930", halted=True))),
    ("G_QUANTITY", PROPOSAL, facts(instrument=krx_instrument("005930", lot=Decimal(10)))),
    (
        "G_TICK",
        proposal(price=Decimal(75_103)),
        facts(instrument=krx_instrument("005930", InstrumentClass.ETF)),
    ),
    ("G_QUANTITY", proposal(quantity=Decimal(0)), FACTS),
    ("G_QUANTITY", proposal(quantity=NAN), FACTS),
    ("G_QUANTITY", proposal(quantity=Decimal("1.5")), FACTS),
    ("G_PRICE", proposal(type=OrderType.MARKET), FACTS),
    ("G_PRICE", proposal(price=None), FACTS),
    ("G_PRICE", proposal(price=Decimal(-75_100)), FACTS),
    ("G_TICK", proposal(price=Decimal(75_050)), FACTS),
    ("G_DAY_LIMIT", proposal(price=Decimal(97_000)), FACTS),
    ("G_BAND", proposal(price=Decimal(80_000)), FACTS),
    ("G_MAX_QUANTITY", proposal(quantity=Decimal(10_001)), FACTS),
    ("G_MAX_VALUE", proposal(quantity=Decimal(7)), FACTS),
    ("G_MIN_VALUE", proposal(symbol="KRW-XRP", quantity=Decimal("0.01")), FACTS),
    (
        "G_DUST",
        proposal(
            symbol="KRW-XRP",
            side=Side.SELL,
            quantity=Decimal("0.06"),
            intent_type=IntentType.EXIT_MAE,
        ),
        facts("exposure", position=Decimal(1)),
    ),
    ("G_NO_STOPS", PROPOSAL, facts("switches", watched=False)),
    ("G_EXPOSURE", PROPOSAL, facts("exposure", total_value=Decimal(9_400_000))),
    ("G_SYMBOL_EXPOSURE", PROPOSAL, facts("exposure", symbol_value=Decimal(1_400_000))),
    ("G_OPEN_SYMBOLS", PROPOSAL, facts("exposure", open_symbols=15)),
    ("G_CASH", PROPOSAL, facts("exposure", cash=Decimal(200_000))),
    ("G_SHORT", proposal(side=Side.SELL), FACTS),
    ("G_NOT_AN_EXIT", proposal(side=Side.SELL, intent_type=IntentType.EXIT_TIME), FACTS),
    ("G_DAILY_LOSS", PROPOSAL, facts("exposure", daily_pnl=Decimal(-300_000))),
    ("G_DAILY_ORDERS", PROPOSAL, facts("exposure", orders_today=100)),
    ("G_ORDER_RATE", PROPOSAL, facts("exposure", orders_last_minute=30)),
    ("G_NO_PRICE", PROPOSAL, facts(market=None)),
    ("G_STALE_PRICE", PROPOSAL, facts("market", age_ms=2001.0)),
    ("G_STALE_PRICE", PROPOSAL, facts("market", age_ms=-1.0)),
    ("G_STALE_PRICE", PROPOSAL, facts("market", age_ms=float("nan"))),
    ("G_EXPIRED", PROPOSAL, facts(now=NOW + timedelta(seconds=5))),
    ("G_KILL_SWITCH", PROPOSAL, facts("switches", account_enabled=False)),
    ("G_STRATEGY_OFF", PROPOSAL, facts("switches", strategy_enabled=False)),
    ("G_MARKET_SUSPENDED", PROPOSAL, facts("switches", market_active=False)),
    ("G_FROZEN", PROPOSAL, facts("switches", frozen=True)),
    ("G_UNKNOWN", PROPOSAL, facts("exposure", symbol_unknown=1)),
    ("G_NOT_RECONCILED", PROPOSAL, facts("switches", reconciled=False)),
    ("G_SESSION", PROPOSAL, facts("switches", session_open=False)),
    ("G_CLOCK", PROPOSAL, facts("switches", clock_synced=False)),
    ("G_SAFETY", PROPOSAL, facts("switches", safety="FAIL")),
    ("G_SAFETY", PROPOSAL, facts("switches", safety="a state nobody knows")),
    ("G_BROKEN", PROPOSAL, facts("exposure", equity=NAN)),
]


@pytest.mark.parametrize(("code", "asked", "known"), WRONG, ids=[case[0] for case in WRONG])
def test_each_wrong_is_refused_by_name(
    code: str, asked: OrderProposal, known: RiskSnapshot
) -> None:
    assert code in codes(asked, known)


def test_every_reason_can_be_given() -> None:
    """A repeated signal is refused where its order is stored, and by PreCheck."""
    own = {code for _, found in OF_STRATEGY for code in found}
    assert {code for code, _, _ in WRONG} | own | {"G_REPEATED"} == REASONS.keys()


def test_what_is_not_known_is_off() -> None:
    assert {"G_KILL_SWITCH", "G_NOT_RECONCILED", "G_SESSION", "G_SAFETY"} <= codes(
        PROPOSAL, facts(switches=Switches())
    )


def test_rule_that_fails_refuses() -> None:
    def broken(ask: RuleInput, refuse: Callable[[str, str], None]) -> None:
        refuse("G_CASH", str(1 // ask.snapshot.exposure.orders_today))

    assert codes(PROPOSAL, FACTS, PreTradeGate(LIMITS, (broken,))) == {"G_BROKEN"}


def test_nobody_but_the_gate_approves() -> None:
    with pytest.raises(TypeError, match="only the gate"):
        ApprovedOrder(PROPOSAL, NOW)
    answer = GATE.check(PROPOSAL, FACTS)
    assert isinstance(answer, ApprovedOrder)
    with pytest.raises(AttributeError):
        answer.proposal = proposal(quantity=Decimal(1_000))  # type: ignore[misc]
    with pytest.raises(TypeError, match="only the gate"):
        dataclasses.replace(answer, proposal=proposal(quantity=Decimal(1_000)))


LOSING_AND_FULL = facts(
    "exposure",
    position=Decimal(10),
    symbol_value=Decimal(9_000_000),
    total_value=Decimal(9_400_000),
    daily_pnl=Decimal(-900_000),
    orders_today=500,
)


def test_limits_on_new_exposure_never_hold_an_exit_back() -> None:
    leave = proposal(
        side=Side.SELL,
        type=OrderType.MARKET,
        price=None,
        quantity=Decimal(10),
        intent_type=IntentType.EXIT_STOPLOSS,
    )
    assert codes(leave, LOSING_AND_FULL) == set()


@pytest.mark.parametrize(
    ("pending_sell", "refused"), [(0, set()), (6, set()), (7, {"G_NOT_AN_EXIT"})]
)
def test_an_unknown_outcome_limits_an_exit_to_what_is_surely_held(
    pending_sell: int, refused: set[str]
) -> None:
    """An UNKNOWN buy holds no exit back; an UNKNOWN sell counts as sold."""
    stop = proposal(side=Side.SELL, quantity=Decimal(4), intent_type=IntentType.EXIT_STOPLOSS)
    known = facts(
        "exposure",
        position=Decimal(10),
        pending_sell=Decimal(pending_sell),
        symbol_unknown=1,
    )
    assert codes(stop, known) == refused


@pytest.mark.parametrize("why", IntentType)
def test_what_is_frozen_is_left_by_stops_and_people_alone(why: IntentType) -> None:
    held = facts("exposure", position=Decimal(10))
    frozen = replace(held, switches=replace(held.switches, frozen=True))
    leave = proposal(side=Side.SELL, quantity=Decimal(4), intent_type=why)
    by_strategy = why in (IntentType.ENTRY, IntentType.EXIT_SIGNAL, IntentType.EXIT_TP)
    assert codes(leave, frozen) == ({"G_FROZEN"} if by_strategy else set())


@pytest.mark.parametrize(("under_way", "passes"), [(6, True), (7, False)])
def test_two_exits_never_sell_more_than_is_held(under_way: int, passes: bool) -> None:
    leave = proposal(side=Side.SELL, quantity=Decimal(4), intent_type=IntentType.EXIT_TRAIL)
    known = facts("exposure", position=Decimal(10), pending_sell=Decimal(under_way))
    assert (codes(leave, known) == set()) is passes


amounts = st.decimals(0, 20_000_000, places=0)
known_facts = st.builds(
    lambda position, pending, symbol, rest, cash, pnl, orders: facts(
        "exposure",
        position=position,
        pending_sell=min(pending, position),
        symbol_value=symbol,
        total_value=symbol + rest,
        cash=cash,
        daily_pnl=pnl,
        orders_today=orders,
    ),
    st.decimals(0, 50, places=0),
    st.decimals(0, 50, places=0),
    amounts,
    amounts,
    amounts,
    st.decimals(-1_000_000, 1_000_000, places=0),
    st.integers(0, 200),
)
proposals = st.builds(
    lambda side, quantity, price: proposal(side=side, quantity=quantity, price=price),
    st.sampled_from(Side),
    st.decimals(-5, 50, places=1),
    st.decimals(50_000, 100_000, places=0),
)


@given(proposals, known_facts)
def test_whatever_passes_is_within_every_limit(asked: OrderProposal, known: RiskSnapshot) -> None:
    if isinstance(GATE.check(asked, known), Refusal):
        return
    exposure, price = known.exposure, asked.price
    assert price is not None
    assert known.market is not None
    assert known.market.base is not None
    value = asked.quantity * price
    limits = known.instrument.daily_limits(known.market.base)
    assert limits is not None
    assert limits[0] <= price <= limits[1]
    assert known.instrument.ticks.has(price)
    assert 0 < value <= LIMITS.max_order_value
    assert exposure.orders_today < LIMITS.orders_per_day
    if asked.side is Side.SELL:
        assert asked.quantity <= exposure.position - exposure.pending_sell
    else:
        assert value <= exposure.cash
        assert exposure.total_value + value <= exposure.equity * LIMITS.max_exposure
        assert exposure.symbol_value + value <= exposure.equity * LIMITS.max_symbol_exposure


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"min_order_value .600000. must not be above"):
        RiskLimitsConfig(min_order_value=600_000)


def test_limits_are_exact() -> None:
    assert LIMITS.max_symbol_exposure == Decimal("0.15")
    assert LIMITS.max_order_value == 500_000


@given(st.decimals(Decimal(4_000), Decimal(7_000), places=0), st.floats(0, 0.1))
def test_what_is_bought_can_be_sold_after_a_fall(value: Decimal, fall: float) -> None:
    price = Decimal(1_000)
    market = QuoteSnapshot(last=price, bid=price, ask=price, age_ms=20)
    entry = proposal(symbol="KRW-XRP", quantity=value / price, price=price)
    if codes(entry, facts(market=market)):
        assert value * (1 - LIMITS.exit_margin) < 5_000
        return
    fallen = replace(market, bid=price * (1 - Decimal(fall)))
    out = proposal(
        symbol="KRW-XRP",
        side=Side.SELL,
        type=OrderType.MARKET,
        price=None,
        quantity=entry.quantity,
        intent_type=IntentType.EXIT_MAE,
    )
    held = facts("exposure", position=entry.quantity)
    assert codes(out, replace(held, market=fallen)) == set()


def test_dust_does_not_count_as_an_open_symbol() -> None:
    entry = proposal(symbol="KRW-XRP", quantity=Decimal(1))
    full = {"open_symbols": LIMITS.max_open_symbols}
    assert codes(entry, facts("exposure", **full, symbol_value=Decimal(4_999))) == {
        "G_OPEN_SYMBOLS"
    }
    assert codes(entry, facts("exposure", **full, symbol_value=Decimal(5_000))) == set()


def test_what_is_held_can_be_sold_whatever_its_instrument_says() -> None:
    held = replace(FACTS.exposure, position=Decimal("2.5"))
    known = facts(exposure=held, instrument=unknown_instrument("005930"))
    leaving = proposal(
        side=Side.SELL,
        type=OrderType.MARKET,
        price=None,
        quantity=Decimal("2.5"),  # an odd lot, all of it
        intent_type=IntentType.EXIT_MAE,
    )
    assert codes(leaving, known) == set()
    assert codes(replace(leaving, quantity=Decimal("1.5")), known) == {"G_QUANTITY"}


def test_a_refresh_that_changes_a_lot_is_seen_by_the_next_order() -> None:
    instruments = Instruments([krx_instrument("005930")])

    def check() -> set[str]:
        return codes(PROPOSAL, replace(FACTS, instrument=instruments["005930"]))

    assert check() == set()
    instruments.replace([krx_instrument("005930", lot=Decimal(10))])
    assert check() == {"G_QUANTITY"}
    instruments.replace([krx_instrument("005930", halted=True)])
    assert check() == {"G_INSTRUMENT"}


def test_an_etf_trades_every_five_won_and_beyond_the_limits_of_a_stock() -> None:
    etf = krx_instrument("069500", InstrumentClass.ETF)
    wide = PreTradeGate(replace(LIMITS, price_band=Decimal(1)))
    order = proposal(price=Decimal(75_105))
    assert codes(order, FACTS) == {"G_TICK"}
    assert codes(order, facts(instrument=etf)) == set()
    high = proposal(price=Decimal(100_000))  # 35 % above the base
    assert codes(high, FACTS, wide) == {"G_DAY_LIMIT"}
    assert codes(high, facts(instrument=etf), wide) == set()


OWN = StrategyLimits(
    capital=Decimal(1_000_000),
    max_order_value=Decimal(300_000),
    max_symbol_exposure=Decimal("0.5"),
    max_open_symbols=2,
    orders_per_day=10,
)
ASKED = PROPOSAL.quantity * Decimal(75_100)  # 225,300 won


def of_strategy(**used: Any) -> RiskSnapshot:
    return replace(FACTS, exposure=replace(FACTS.exposure, **used))


OF_STRATEGY: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"strategy_value": Decimal(1_000_000) - ASKED}, set()),
    ({"strategy_value": Decimal(1_000_001) - ASKED}, {"G_CAPITAL"}),
    ({"strategy_symbol_value": Decimal(500_000) - ASKED}, set()),
    ({"strategy_symbol_value": Decimal(500_001) - ASKED}, {"G_STRATEGY_LIMIT"}),
    ({"strategy_symbols": 2}, {"G_STRATEGY_LIMIT"}),
    ({"strategy_symbols": 2, "strategy_symbol_value": Decimal(1)}, set()),
    ({"strategy_orders_today": 10}, {"G_STRATEGY_LIMIT"}),
]


@pytest.mark.parametrize(("used", "code"), OF_STRATEGY)
def test_a_strategy_has_capital_and_limits_of_its_own(used: dict[str, Any], code: set[str]) -> None:
    gate = PreTradeGate(replace(LIMITS, strategies={"scalp": OWN}))
    assert codes(PROPOSAL, of_strategy(**used), gate) == code
    other = replace(PROPOSAL, strategy_key="other")
    assert codes(other, of_strategy(**used), gate) == set()


def test_the_largest_order_of_a_strategy_is_its_own() -> None:
    gate = PreTradeGate(replace(LIMITS, strategies={"scalp": OWN}))
    assert codes(replace(PROPOSAL, quantity=Decimal(4)), FACTS, gate) == {"G_STRATEGY_LIMIT"}


def test_no_capital_stops_an_exit() -> None:
    gate = PreTradeGate(replace(LIMITS, strategies={"scalp": StrategyLimits(capital=Decimal(1))}))
    held = of_strategy(position=Decimal(9), strategy_value=Decimal(10**9))
    leaving = replace(
        PROPOSAL, side=Side.SELL, intent_type=IntentType.EXIT_SIGNAL, price=Decimal(75_000)
    )
    assert codes(leaving, held, gate) == set()
    assert codes(replace(leaving, intent_type=IntentType.ENTRY), held, gate) == set()
