"""Laws of backtests over bars, for any bars, decisions, costs and stops."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.backtest import BacktestConfig, BacktestResult, BarTape, default_instruments, run_backtest
from qts.brokers import FeesConfig, PaperConfig
from qts.domain import Bar, IntentType, OrderType, Side, Timeframe
from qts.risk import RiskLimitsConfig
from qts.strategies import NoParams, Signal, Strategy, View
from tests.backtest.bars import (
    Prices,
    assert_fills_are_inside,
    bar_tape,
    day_closes,
    equity_at,
    minute_closes,
)

STOCKS = ("005930", "000660", "035420")  # a day of theirs opens after the close of the day before
LIMITS = RiskLimitsConfig(max_order_value=20_000_000, orders_per_day=1000, orders_per_minute=1000)


few = settings(max_examples=40)


class Anything(Strategy[NoParams], key="anything"):
    """Decides by chance: market and limit orders, entries and exits, of any size."""

    kind = "SWING"
    chance = random.Random(0)  # noqa: S311 - a walk, not a secret

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        draw, held = self.chance.random(), view.quantity(bar.symbol)
        if draw < 0.3:
            return
        more: dict[str, Any] = {}
        if self.chance.random() < 0.4:
            limit = bar.close * (1 + self.chance.uniform(-0.03, 0.03))
            ticks = default_instruments()[bar.symbol].ticks
            more = {"type": OrderType.LIMIT, "price": ticks.round(Decimal(repr(round(limit, 4))))}
        if self.chance.random() < 0.3:
            more["quantity"] = self.chance.randint(1, 3000)
        side = Side.SELL if held and draw < 0.6 else Side.BUY
        kind = IntentType.EXIT_SIGNAL if side is Side.SELL else IntentType.ENTRY
        yield Signal(symbol=bar.symbol, side=side, at=bar.at, intent_type=kind, **more)


def made_bars(chance: random.Random, count: int, price: float) -> list[Prices]:
    """Return bars with gaps between them, on a grid of ten won."""
    found = []
    for _ in range(count):
        first = price * (1 + chance.gauss(0, 0.02))
        last = first * (1 + chance.gauss(0, 0.02))
        high, low = max(first, last) * (1 + abs(chance.gauss(0, 0.01))), min(first, last)
        low *= 1 - abs(chance.gauss(0, 0.01))
        grid = [max(10.0, round(each / 10) * 10.0) for each in (first, high, low, last)]
        found.append((grid[0], max(grid), min(grid), grid[3]))
        price = last
    return found


def made_run(
    seed: int, timeframe: Timeframe, last: str = STOCKS[-1], **settings: Any
) -> tuple[BacktestResult, BarTape]:
    chance = random.Random(seed)  # noqa: S311 - a walk, not a secret
    closes = day_closes(30) if timeframe is Timeframe.D1 else minute_closes(40)
    bars = {}
    for symbol in (*STOCKS[:2], last):
        prices = made_bars(chance, len(closes), chance.uniform(3_000, 60_000))
        kept = zip(closes, prices, strict=True)
        bars[symbol] = [each for each in kept if chance.random() < 0.9]  # halts: no bar
    tape = bar_tape(bars, timeframe)
    strategy = Anything.from_params()
    strategy.timeframes, strategy.chance = (timeframe,), chance
    return run_backtest(strategy, tape, BacktestConfig(limits=LIMITS, **settings)), tape


SETTINGS = st.fixed_dictionaries(
    {
        "use_stops": st.booleans(),
        "costs": st.builds(
            FeesConfig,
            krx_fee=st.sampled_from([0, 0.00015, 0.01]),
            krx_sale_tax=st.sampled_from([0, 0.002]),
        ),
        "paper": st.builds(
            PaperConfig,
            slippage_ticks=st.sampled_from([0, 1, 7]),
            slippage_bps=st.sampled_from([0.0, 25.0]),
            volume_share=st.sampled_from([0.0, 0.3]),
        ),
    }
)


@few
@given(st.integers(0, 10**6), st.sampled_from([Timeframe.D1, Timeframe.M1]), SETTINGS)
def test_no_fill_is_outside_a_bar_after_its_decision(
    seed: int, timeframe: Timeframe, chosen: dict[str, Any]
) -> None:
    result, tape = made_run(seed, timeframe, "KRW-BTC", **chosen)
    assert_fills_are_inside(result, tape)


@few
@given(st.integers(0, 10**6), SETTINGS)
def test_cash_and_positions_are_the_equity_at_every_bar(seed: int, chosen: dict[str, Any]) -> None:
    result, tape = made_run(seed, Timeframe.D1, **chosen)
    closes = {float(at) for at in tape.rows["at"]}
    points = [point for point in result.points if point.at in closes]
    assert {point.at for point in points} == closes
    for point in points:
        assert point.equity == pytest.approx(equity_at(result, tape, point.at), abs=0.01)


@few
@given(st.integers(0, 10**6), SETTINGS)
def test_costs_are_those_of_each_fill_and_of_nothing_else(
    seed: int, chosen: dict[str, Any]
) -> None:
    result, _ = made_run(seed, Timeframe.D1, "KRW-BTC", **chosen)
    instruments, costs = default_instruments(), chosen["costs"]
    for fill in result.fills:
        schedule = costs.of(instruments[fill.symbol])
        fee = schedule.of(fill.side, fill.price * fill.quantity)
        unit = Decimal(1) if fill.symbol != "KRW-BTC" else Decimal("0.00000001")
        assert fill.fee == fee.quantize(unit, ROUND_FLOOR)
    total = sum((fill.fee for fill in result.fills), Decimal(0))
    trades = (*result.trades, *result.still_open)
    assert sum((trade.fees for trade in trades), Decimal(0)) == total
    assert result.performance.costs == pytest.approx(float(total))


@few
@given(st.integers(0, 10**6), SETTINGS)
def test_every_order_fills_or_is_counted_with_its_reason(seed: int, chosen: dict[str, Any]) -> None:
    result, _ = made_run(seed, Timeframe.D1, **chosen)
    filled: dict[str, Decimal] = {}
    for fill in result.fills:
        filled[fill.broker_order_id] = filled.get(fill.broker_order_id, Decimal(0)) + fill.quantity
    complete = sum(
        filled.get(f"B{number + 1}", 0) == proposal.quantity
        for number, proposal in enumerate(result.proposals)
    )
    rejected = sum(
        count for reason, count in result.refusals.items() if "won are free" in reason
        or "can be sold" in reason or "below the minimum" in reason
    )  # fmt: skip
    assert complete + sum(result.expired.values()) + rejected == len(result.proposals)


@few
@given(st.integers(0, 10**6), SETTINGS)
def test_the_future_changes_nothing(seed: int, chosen: dict[str, Any]) -> None:
    """A run over the first half of the bars does what the whole run does in that time."""
    whole, tape = made_run(seed, Timeframe.D1, **chosen)
    middle = float(tape.rows["at"][len(tape.rows) // 2])
    strategy = Anything.from_params()
    strategy.timeframes, strategy.chance = (Timeframe.D1,), random.Random(seed)  # noqa: S311
    _skip_bars(strategy.chance)
    half = run_backtest(
        strategy, tape.select(None, end=middle), BacktestConfig(limits=LIMITS, **chosen)
    )
    before = [fill for fill in whole.fills if fill.at.timestamp() <= middle]
    assert list(half.fills) == before


def _skip_bars(chance: random.Random) -> None:
    """Draw what the bars are made of, as `made_run` does before the strategy draws."""
    for _ in STOCKS:
        made_bars(chance, 30, chance.uniform(3_000, 60_000))
        for _ in range(30):
            chance.random()
