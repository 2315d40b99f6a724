"""Stop orders over ticks and bars: they wait, are triggered at their price or beyond, and end."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.backtest import BacktestResult, run_backtest
from qts.brokers import PaperConfig
from qts.domain import Bar, IntentType, Side, Tick, Timeframe
from qts.risk import RiskLimitsConfig, StopsConfig
from qts.strategies import Cancel, Replace, Signal, View
from tests.backtest.bars import assert_fills_are_inside, bar_tape, day_closes, on_bars, run
from tests.backtest.tapes import prices, tape
from tests.backtest.test_bar_laws import made_bars
from tests.backtest.test_strategy_orders import FREE, Scripted, bid

D = Decimal
AT_ONCE = replace(FREE, paper=PaperConfig(latency_ms=0))
WIDE = StopsConfig(mae_half=0.5, mae_full=0.6, mae_account=0.9, trail_arm=0.9)


def stop(trigger: Any, side: Side = Side.BUY, **more: Any) -> Any:
    return lambda tick, _view: Signal(
        symbol=tick.symbol, side=side, at=tick.at, trigger=trigger, **{"quantity": 4, **more}
    )


def filled(result: BacktestResult) -> list[tuple[Decimal, int]]:
    return [(each.price, int(each.quantity)) for each in result.fills]


def test_a_stop_order_waits_is_shown_and_is_sent_at_the_tick_that_reaches_it() -> None:
    script = Scripted(stop(10_100))
    result = run_backtest(script, tape(prices([10_000, 10_050, 10_090, 10_100, 10_120])), FREE)
    assert filled(result) == [(D(10_120), 4)]  # the event after the trigger
    shown = [[(each.state, each.trigger) for each in orders] for orders in script.seen]
    waits = [("WAITING", D(10_100))]
    assert shown[:3] == [[], waits, waits]
    assert [each[0] for each in shown[3]] == ["ACKED"]
    assert script.states == ["WAITING", "TRIGGERED", "SENT", "ACKED", "FILLED"]
    assert result.strategies[0].signals == 1


def test_without_latency_it_fills_on_the_tick_that_triggers_it() -> None:
    result = run_backtest(
        Scripted(stop(10_100)), tape(prices([10_000, 10_300, 10_000, 10_000])), AT_ONCE
    )
    assert filled(result) == [(D(10_300), 4)]


def test_a_sale_is_triggered_from_above() -> None:
    script = Scripted(
        lambda tick, _view: Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, quantity=D(9)),
        None,
        stop(9_900, Side.SELL, intent_type=IntentType.EXIT_SIGNAL),
    )
    result = run_backtest(
        script, tape(prices([10_000, 10_000, 10_000, 9_910, 9_890, 9_880])), AT_ONCE
    )
    assert filled(result) == [(D(10_000), 9), (D(9_890), 4)]


def test_a_stop_limit_order_rests_once_it_is_triggered() -> None:
    script = Scripted(stop(10_100, type="LIMIT", price=10_050))
    result = run_backtest(script, tape(prices([10_000, 10_150, 10_100, 10_040, 10_000])), AT_ONCE)
    assert filled(result) == [(D(10_050), 4)]


def test_it_is_cancelled_and_replaced() -> None:
    script = Scripted(
        stop(10_100),
        lambda _tick, view: Replace(view.orders[0], trigger=D(10_300), quantity=D(2)),
        None,
        lambda _tick, view: Cancel(view.orders[0]),
    )
    result = run_backtest(script, tape(prices([10_000, 10_050, 10_200, 10_200, 10_400])), AT_ONCE)
    assert filled(result) == []
    assert [(int(each.quantity), each.trigger) for each in script.seen[2]] == [(2, D(10_300))]
    assert script.seen[4] == ()
    assert script.states == ["WAITING", "CANCELLED", "WAITING", "CANCELLED"]


def test_an_order_that_does_not_wait_takes_no_trigger() -> None:
    script = Scripted(bid(9_900, quantity=1))
    run_backtest(script, tape(prices([10_000, 10_000])), FREE)
    (order,) = script.seen[1]
    with pytest.raises(ValueError, match=r"Replace\.trigger: expected none"):
        Replace(order, trigger=D(10_000))


@pytest.mark.parametrize(
    ("lifetime", "fills"), [(2, 0), (3.5, 1), ("IOC", 1), ("FOK", 1), ("GTC", 1)]
)
def test_its_time_in_force_is_that_of_the_wait(lifetime: Any, fills: int) -> None:
    script = Scripted(stop(10_100, time_in_force=lifetime))
    result = run_backtest(script, tape(prices([10_000] * 3 + [10_100] * 2)), AT_ONCE)
    assert len(result.fills) == fills
    assert result.expired == ({} if fills else {"its trigger was not reached": 1})


def test_what_the_data_does_not_reach_is_counted() -> None:
    script = Scripted(stop(10_100))
    script.on_stop = lambda view: ()  # type: ignore[method-assign]  # noqa: ARG005
    result = run_backtest(script, tape(prices([10_000] * 3)), FREE)
    assert result.expired == {"its trigger was not reached": 1}
    assert result.warnings == ["no fill: 1 signals, 0 orders"]


def test_a_purchase_above_and_a_sale_below_wait_together() -> None:
    class Straddle(Scripted):
        def on_tick(self, tick: Tick, view: View) -> Iterable[Any]:
            found = [*super().on_tick(tick, view)]
            if len(self.seen) == 3:
                found = [
                    stop(10_100)(tick, view),
                    stop(9_900, Side.SELL, intent_type="EXIT_SIGNAL", quantity=9)(tick, view),
                ]
            return found

    script = Straddle(
        lambda tick, _view: Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, quantity=D(9))
    )
    path = [10_000, 10_000, 10_000, 10_120, 9_880, 9_880]
    result = run_backtest(script, tape(prices(path)), AT_ONCE)
    assert filled(result) == [(D(10_000), 9), (D(10_120), 4), (D(9_880), 9)]
    assert result.refusals == {}


def test_what_the_gate_refuses_is_reported_as_live() -> None:
    one_a_day = replace(AT_ONCE, limits=RiskLimitsConfig(orders_per_day=1))
    script = Scripted(
        lambda tick, _view: Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, quantity=D(1)),
        stop(10_100),
    )
    result = run_backtest(script, tape(prices([10_000] * 3 + [10_110] * 2)), one_a_day)
    assert script.states == ["SENT", "ACKED", "FILLED", "WAITING", "TRIGGERED", "REJECTED"]
    assert len(result.fills) == 1


def test_two_strategies_each_see_their_own() -> None:
    one, other = Scripted(stop(10_100)), Scripted(None, stop(10_200))
    other.key = "other"
    run_backtest([one, other], tape(prices([10_000, 10_050, 10_060, 10_060])), FREE)
    assert [len(each) for each in one.seen] == [0, 1, 1, 1]
    assert [len(each) for each in other.seen] == [0, 0, 1, 1]


# ---- bars ----

DAYS = day_closes(4)
QUIET = (10_000.0, 10_010.0, 9_990.0, 10_000.0)


def over(*bars: tuple[float, float, float, float], **more: Any) -> BacktestResult:
    """Run a purchase at 10,100 that is placed on the close of the first day."""
    use_stops = bool(more.get("stop") or more.get("target"))
    strategy = on_bars([0], trigger=10_100, quantity=4, **more)
    days = list(zip(DAYS, (QUIET, *bars), strict=False))
    return run(strategy, bar_tape({"005930": days}), use_stops=use_stops, stops=WIDE)


@pytest.mark.parametrize(
    ("bar", "price"),
    [
        pytest.param((10_050, 10_200, 10_000, 10_150), 10_100, id="inside the bar"),
        pytest.param((10_300, 10_400, 10_250, 10_350), 10_300, id="a gap fills at the open"),
        pytest.param((10_100, 10_120, 10_000, 10_000), 10_100, id="at the open"),
        pytest.param((10_000, 10_100, 9_900, 9_950), 10_100, id="at the high"),
        pytest.param((10_000, 10_090, 9_900, 9_950), None, id="not reached"),
    ],
)
def test_a_bar_fills_it_at_its_price_or_at_the_open(bar: Any, price: int | None) -> None:
    assert filled(over(bar)) == ([] if price is None else [(D(price), 4)])


def test_the_low_comes_after_an_entry_on_the_way_up() -> None:
    """The worst case: the bar reaches the entry first, and then the stop of its position."""
    result = over((10_050, 10_200, 9_700, 10_150), stop=9_800)
    assert [(each.side, each.price) for each in result.fills] == [
        (Side.BUY, D(10_100)),
        (Side.SELL, D(9_800)),
    ]


def test_a_day_order_waits_for_one_bar_and_gtc_for_more() -> None:
    quiet, high = QUIET, (10_050.0, 10_200.0, 10_000.0, 10_150.0)
    assert filled(over(quiet, high)) == []
    assert filled(over(quiet, high, time_in_force="GTC")) == [(D(10_100), 4)]
    assert over(quiet, high).expired == {"its trigger was not reached": 1}


class Breakouts(Scripted):
    """Places stop orders of either side by chance, on closes."""

    timeframes = ("1d",)
    triggers: dict[tuple[str, Side, float], Decimal] = {}  # noqa: RUF012 - set by the test
    chance = random.Random(0)  # noqa: S311 - a walk, not a secret

    def on_bar(self, bar: Bar, view: View) -> Iterable[Any]:
        held, draw = view.quantity(bar.symbol), self.chance.random()
        side = Side.SELL if held and draw < 0.5 else Side.BUY
        level = round(bar.close * (1 + side.sign * self.chance.uniform(-0.01, 0.04)) / 10) * 10
        kind = IntentType.EXIT_SIGNAL if side is Side.SELL else IntentType.ENTRY
        if draw < 0.8:
            lifetime: Any = self.chance.choice(["DAY", "GTC", 3 * 86_400])
            self.triggers[bar.symbol, side, bar.at] = D(max(level, 10))
            yield Signal(
                symbol=bar.symbol,
                side=side,
                at=bar.at,
                trigger=D(max(level, 10)),
                quantity=D(self.chance.randint(1, 20)),
                intent_type=kind,
                time_in_force=lifetime,
            )


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0, 2]))
def test_a_stop_order_fills_once_and_never_better_than_its_price(seed: int, slips: int) -> None:
    """Over bars: at its price, or worse where the bar opened beyond it; never more than asked."""
    chance = random.Random(seed)  # noqa: S311 - a walk, not a secret
    closes = day_closes(30)
    bars = list(zip(closes, made_bars(chance, 30, 10_000.0), strict=True))
    days = bar_tape({"005930": bars, "KRW-BTC": bars}, Timeframe.D1)
    strategy = Breakouts()
    strategy.chance, strategy.triggers = chance, {}
    result = run(strategy, days, use_stops=False, paper=PaperConfig(slippage_ticks=slips))
    assert_fills_are_inside(result, days)
    opens = {bar[0] for _, bar in bars}
    for number, proposal in enumerate(result.proposals):
        fills = [each for each in result.fills if each.broker_order_id == f"B{number + 1}"]
        assert sum(each.quantity for each in fills) <= proposal.quantity
    for fill in result.fills:
        proposal = result.proposals[int(fill.broker_order_id[1:]) - 1]
        at = proposal.decided_at.timestamp()
        trigger = strategy.triggers[proposal.symbol, proposal.side, at]
        assert (fill.price - trigger) * fill.side.sign >= 0
        assert slips or fill.price == trigger or float(fill.price) in opens
