"""Orders of strategies over a tape: seen, cancelled, replaced, sized."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.backtest import BacktestConfig, run_backtest
from qts.brokers import PaperConfig
from qts.domain import OrderSnapshot, OrderType, Side, Tick
from qts.risk import RiskLimitsConfig, StopsConfig
from qts.strategies import (
    Cancel,
    Instruction,
    NoParams,
    Replace,
    Signal,
    Strategy,
    View,
    load_strategy,
)
from tests.backtest.bars import bar_tape, day_closes, on_bars, run
from tests.backtest.tapes import prices, tape

# ruff: noqa: ARG002 - signatures of Strategy

D = Decimal
EXAMPLES = Path(__file__).parents[2] / "examples/strategies"
FREE = BacktestConfig(
    limits=RiskLimitsConfig(orders_per_day=10**6, orders_per_minute=10**6), use_stops=False
)


class Scripted(Strategy[NoParams], key="scripted"):
    """Returns what a test says at each tick, given the view; keeps what it saw."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(NoParams())
        self.steps = list(steps)
        self.seen: list[tuple[OrderSnapshot, ...]] = []
        self.states: list[str] = []
        self.at_stop: tuple[OrderSnapshot, ...] = ()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        self.seen.append(view.orders)
        step = self.steps.pop(0) if self.steps else None
        return [step(tick, view)] if step else []

    def on_order(self, order: OrderSnapshot, view: View) -> Iterable[Instruction]:
        self.states.append(order.state)
        return ()

    def on_stop(self, view: View) -> Iterable[Cancel]:
        self.at_stop = view.orders
        return [Cancel(each) for each in view.orders]


def bid(price: Any, **more: Any) -> Any:
    return lambda tick, _view: Signal(
        symbol=tick.symbol, side=Side.BUY, at=tick.at, type=OrderType.LIMIT, price=price, **more
    )


def test_an_open_order_is_seen_replaced_and_cancelled() -> None:
    script = Scripted(
        bid(9_900, quantity=4),
        lambda _tick, view: Replace(view.orders[0], price=D(9_950)),
        lambda _tick, view: Replace(view.orders[0], quantity=D(6)),
        lambda _tick, view: Cancel(view.orders[0]),
    )
    result = run_backtest(script, tape(prices([10_000] * 6)), FREE)
    shown = [[(each.price, int(each.quantity)) for each in orders] for orders in script.seen]
    assert shown == [[], [(D(9_900), 4)], [(D(9_950), 4)], [(D(9_950), 6)], [], []]
    ids = [orders[0].intent_id for orders in script.seen if orders]
    assert len(set(ids)) == 3  # a replacement is another order
    assert script.states == ["SENT", "ACKED", "CANCELLED"] * 3
    assert not result.fills


def test_what_was_filled_is_not_ordered_again() -> None:
    script = Scripted(
        bid(9_900, quantity=4), lambda _tick, view: Replace(view.orders[0], price=D(9_600))
    )
    ticks = [
        Tick("KRW-BTC", 10_000, 100, 9_990, 10_010, 1_794_787_200.0),
        Tick("KRW-BTC", 9_900, 1, 9_890, 9_900, 1_794_787_201.0),
        Tick("KRW-BTC", 9_950, 100, 9_940, 9_960, 1_794_787_202.0),
    ]
    thin = replace(FREE, paper=PaperConfig(volume_share=1.0))
    result = run_backtest(script, tape(ticks), thin)
    filled = sum((each.quantity for each in result.fills), D(0))
    (order,) = script.at_stop
    assert 0 < filled < 4
    assert (order.price, order.quantity) == (D(9_600), 4 - filled)


def test_a_cancel_of_an_order_that_has_ended_is_no_error() -> None:
    kept: list[OrderSnapshot] = []

    def remember(_tick: Tick, view: View) -> Signal | None:
        kept.extend(view.orders)
        return None

    script = Scripted(
        bid(9_900, quantity=4),
        lambda tick, view: remember(tick, view) or bid(9_000, quantity=1)(tick, view),
        lambda _tick, _view: Cancel(kept[0]),
        lambda _tick, _view: Replace(kept[0], price=D(9_500)),
    )
    result = run_backtest(script, tape(prices([10_000, 10_000, 9_800, 9_800, 9_800])), FREE)
    assert [each.price for each in result.fills] == [9_900]
    assert result.strategies[0].errors == 0
    assert script.at_stop == ()


@pytest.mark.parametrize(
    ("size", "quantity"),
    [
        ({"quantity": 7}, 7),
        ({"value": 250_000}, 25),
        ({"share": "0.02"}, 20),
        ({"risk": 0.001, "stop": 9_750}, 40),  # 10,000 won, 250 each
        ({}, 50),
    ],
)
def test_sizes(size: dict[str, Any], quantity: int) -> None:
    config = BacktestConfig(cash=D(10_000_000), use_stops=False)
    script = Scripted(bid(10_000, **size))
    result = run_backtest(script, tape(prices([10_000, 10_000, 9_900])), config)
    assert sum(each.quantity for each in result.fills) == quantity


WIDE = StopsConfig(mae_half=0.5, mae_full=0.6, mae_account=0.9, trail_arm=0.9)
STOPPED = replace(FREE, stops=WIDE, use_stops=True)


@pytest.mark.parametrize(
    ("exits", "path", "reason", "price"),
    [
        ({"stop": 9_800, "target": 10_300}, [10_200, 9_900, 9_800, 9_000], "EXIT_STOPLOSS", 9_800),
        ({"stop": 9_800, "target": 10_300}, [9_900, 10_200, 10_300, 9_000], "EXIT_TP", 10_300),
        ({"trail": 0.02}, [9_900, 10_300, 10_100, 10_090, 9_500], "EXIT_TRAIL", 10_090),
        ({"trail": 0.02}, [9_900, 9_790, 9_500], "EXIT_TRAIL", 9_790),
    ],
)
def test_a_bracket_and_a_trailing_stop_close_the_position(
    exits: dict[str, Any], path: list[float], reason: str, price: float
) -> None:
    script = Scripted(bid(10_000, quantity=3, **exits))
    result = run_backtest(script, tape(prices([10_000, 10_000, *path])), STOPPED)
    (trade,) = result.trades
    assert [each.side for each in result.fills] == ["BUY", "SELL"]
    assert (trade.reason, result.proposals[-1].reason) == (reason, f"{reason} at {price:g}")


def test_in_a_bar_that_has_both_the_stop_comes_before_the_target() -> None:
    flat, wide = (10_000, 10_000, 10_000, 10_000), (10_000, 10_400, 9_700, 10_200)
    closes = day_closes(4)
    days = bar_tape({"005930": list(zip(closes, (flat, flat, wide, flat), strict=True))})
    strategy = on_bars([0], quantity=3, stop=9_800, target=10_300)
    (trade,) = run(strategy, days, stops=WIDE).trades
    assert (trade.reason, trade.exit) == ("EXIT_STOPLOSS", D(9_800))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"stop": 10_100}, "stop 10100 is not below the price 10000"),
        ({"target": 9_900}, "target 9900 is not above the price 10000"),
        (
            {"stop": 9_900, "intent_type": "EXIT_SIGNAL"},
            "stop, target and trail belong to an entry",
        ),
    ],
)
def test_exits_that_do_not_fit_are_refused(more: dict[str, Any], reason: str) -> None:
    result = run_backtest(Scripted(bid(10_000, **more)), tape(prices([10_000] * 3)), STOPPED)
    assert result.refusals == {reason: 1}


@given(st.lists(st.integers(-3, 3), min_size=5, max_size=80))
@settings(max_examples=60, deadline=None)
def test_a_market_maker_has_at_most_one_order_on_each_side(steps: list[int]) -> None:
    price, ticks = 10_000.0, []
    for second, step in enumerate(steps):
        price += step
        at = 1_794_787_200.0 + second * 0.7
        ticks.append(Tick("KRW-BTC", price, 50.0, price - 1, price + 1, at))
    maker = load_strategy(f"{EXAMPLES / 'market_maker.py'}:MarketMaker").from_params()
    maker.symbols = ("KRW-BTC",)
    seen: list[list[Side]] = []
    quote = maker.on_tick

    def on_tick(tick: Tick, view: View) -> Iterable[Instruction]:
        seen.append([each.side for each in view.orders])
        return quote(tick, view)

    maker.on_tick = on_tick  # type: ignore[method-assign]
    result = run_backtest(maker, tape(ticks), FREE)
    assert all(len(set(sides)) == len(sides) for sides in seen)
    assert result.strategies[0].errors == 0
    assert result.expired.get("the data ended", 0) == 0  # none is left open
