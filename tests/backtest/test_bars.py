"""Backtests over bars: fills at the next open, stops inside a bar, what does not fill."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.backtest import BacktestConfig, BarTape, run_backtest
from qts.backtest.order_manager import BacktestOrderManager
from qts.brokers import FeesConfig, PaperConfig
from qts.domain import Bar, IntentType, OrderType, RefusedError, Side, Tick, Timeframe, TimeInForce
from qts.risk import HoldTimeLimits, RiskLimitsConfig, StopsConfig
from qts.strategies import NoParams, RsiScalper, Signal, Strategy, View
from tests.backtest.bars import (
    CLOSE_S,
    DAY_S,
    MONDAY,
    OnBars,
    Prices,
    assert_fills_are_inside,
    bar_tape,
    day_closes,
    minute_closes,
    on_bars,
    run,
)

SYMBOL = "005930"


def days(*prices: Prices) -> dict[str, list[tuple[float, Prices]]]:
    return {SYMBOL: list(zip(day_closes(len(prices)), prices, strict=True))}


def rising(count: int) -> list[Prices]:
    """Return bars whose open, high, low and close are all different."""
    return [(10_000.0 + 100 * n + 10, 10_090.0 + 100 * n, 9_990.0 + 100 * n, 10_050.0 + 100 * n)
            for n in range(count)]  # fmt: skip


FLAT: Prices = (10_000.0, 10_000.0, 10_000.0, 10_000.0)


def test_34_signals_on_daily_closes_are_34_fills_at_the_next_open() -> None:
    prices = rising(36)
    tape = bar_tape(days(*prices))
    result = run(on_bars(range(0, 34, 2), range(1, 34, 2)), tape, use_stops=False)
    assert (result.signals, len(result.proposals), len(result.fills)) == (34, 34, 34)
    opens = [(close - CLOSE_S, Decimal(repr(each[0])))
             for close, each in zip(day_closes(36), prices, strict=True)]  # fmt: skip
    assert [(fill.at.timestamp(), fill.price) for fill in result.fills] == opens[1:35]
    assert not result.expired
    assert not result.warnings


def test_the_orders_of_one_close_all_fill_at_the_next_opens() -> None:
    names = (SYMBOL, "000660", "035720", "051910")
    prices = rising(6)
    tape = bar_tape({name: list(zip(day_closes(6), prices, strict=True)) for name in names})
    result = run(on_bars((0, 2), (1, 3)), tape, use_stops=False)
    opens = [close - CLOSE_S for close in day_closes(6)[1:5] for _ in names]
    assert [fill.at.timestamp() for fill in result.fills] == opens
    assert {fill.symbol for fill in result.fills[:4]} == set(names)


def test_an_exit_decided_on_the_last_bar_of_a_day_fills_at_the_next_open() -> None:
    today = minute_closes(2, MONDAY + CLOSE_S - 120)  # the last one closes at 15:30
    tomorrow = minute_closes(2, MONDAY + DAY_S)
    prices = rising(4)
    tape = bar_tape({SYMBOL: list(zip(today + tomorrow, prices, strict=True))}, Timeframe.M1)
    result = run(on_bars((0,), (1,), ("1m",)), tape, use_stops=False)
    bought, sold = result.fills
    assert (bought.at.timestamp(), bought.price) == (today[0], Decimal(repr(prices[1][0])))
    assert (sold.at.timestamp(), sold.price) == (MONDAY + DAY_S, Decimal(repr(prices[2][0])))


def test_an_order_waits_over_a_gap_of_its_symbol() -> None:
    closes = day_closes(6)
    bars = {SYMBOL: [(closes[0], FLAT), (closes[5], (11_000.0, 11_000.0, 11_000.0, 11_000.0))],
            "000660": [(close, FLAT) for close in closes]}  # fmt: skip
    strategy = on_bars((0,))
    strategy.symbols = (SYMBOL,)
    result = run(strategy, bar_tape(bars), use_stops=False)
    (fill,) = result.fills
    assert (fill.at.timestamp(), int(fill.price)) == (closes[5] - CLOSE_S, 11_000)


def test_a_bar_without_volume_fills_nothing() -> None:
    tape = bar_tape(days(FLAT, FLAT, (10_100.0, 10_100.0, 10_100.0, 10_100.0)))
    tape.rows["volume"][1] = 0.0
    halted = BarTape(tape.timeframe, tape.symbols, tape.rows)
    assert [fill.price for fill in run(on_bars((0,)), halted).fills] == [10_100]
    tape.rows["volume"][:] = 0.0  # the data has no volumes
    without = BarTape(tape.timeframe, tape.symbols, tape.rows)
    assert [fill.price for fill in run(on_bars((0,)), without).fills] == [10_000]


def test_an_order_decided_on_the_last_bar_is_reported_as_not_filled() -> None:
    result = run(on_bars((1,)), bar_tape(days(FLAT, FLAT)))
    assert (len(result.proposals), result.fills) == (1, ())
    assert result.expired == {"the data ended": 1}
    assert "1 of 1 orders not filled: 1 x the data ended" in result.warnings


def held_over(*prices: Prices, **settings: object) -> list[tuple[int, int, str]]:
    """Buy 50 at 10,000 on the second bar; return quantity, price and reason of the sales."""
    result = run(on_bars((0,)), bar_tape(days(FLAT, FLAT, *prices)), **settings)
    reasons = {f"B{n + 1}": each.intent_type for n, each in enumerate(result.proposals)}
    assert_fills_are_inside(result, bar_tape(days(FLAT, FLAT, *prices)))
    return [(int(fill.quantity), int(fill.price), reasons[fill.broker_order_id])
            for fill in result.fills if fill.side is Side.SELL]  # fmt: skip


def test_a_stop_inside_a_bar_fills_at_its_level() -> None:
    sold = held_over((9_990.0, 10_050.0, 9_700.0, 9_900.0))
    assert sold == [(25, 9_850, "EXIT_MAE"), (25, 9_800, "EXIT_MAE")]  # 1.5 % and 2 %


def test_a_stop_between_two_prices_fills_at_the_worse_one() -> None:
    stops = StopsConfig(mae_half=0.0123, mae_full=0.0123)  # at 9,877
    assert held_over((9_990.0, 10_000.0, 9_700.0, 9_900.0), stops=stops)[0][1] == 9_870


def test_a_gap_through_the_stop_fills_at_the_open() -> None:
    assert held_over((9_500.0, 9_600.0, 9_400.0, 9_550.0)) == [(50, 9_500, "EXIT_MAE")]


def test_a_low_above_the_stop_sells_nothing() -> None:
    assert held_over((9_990.0, 10_000.0, 9_860.0, 9_870.0)) == []


def test_the_stop_comes_before_the_target_when_a_bar_touches_both() -> None:
    strategy = on_bars((0,))
    strategy.target = Decimal(10_300)
    bars = days(FLAT, FLAT, (10_000.0, 10_400.0, 9_700.0, 10_100.0))
    result = run(strategy, bar_tape(bars))
    assert [(int(fill.quantity), int(fill.price)) for fill in result.fills[1:]] == [
        (25, 9850),
        (25, 9800),
    ]
    assert result.expired == {"a stop took its place": 1}
    only_target = run(strategy_with_target(), bar_tape(bars), use_stops=False)
    assert [fill.price for fill in only_target.fills[1:]] == [10_300]


def strategy_with_target() -> Strategy[NoParams]:
    strategy = on_bars((0,))
    strategy.target = Decimal(10_300)
    return strategy


def test_a_trailing_stop_follows_the_high_and_fills_on_the_way_to_the_close() -> None:
    sold = held_over((10_000.0, 10_400.0, 9_990.0, 10_100.0))
    assert sold == [(50, 10_340, "EXIT_TRAIL")]  # 0.5 % below 10,400 is 10,348


def test_a_holding_time_ends_at_the_open_after_it() -> None:
    stops = StopsConfig(holding=HoldTimeLimits(portfolio_s=1.5 * DAY_S))
    prices = [(10_000.0 + n, 10_020.0, 9_990.0, 10_010.0) for n in range(0, 40, 10)]
    assert held_over(*prices, stops=stops) == [(50, 10_010, "EXIT_TIME")]


def test_slippage_ends_at_the_price_range_of_the_bar() -> None:
    bars = days(
        FLAT, (10_000.0, 10_020.0, 9_990.0, 10_000.0), (9_990.0, 10_000.0, 9_990.0, 9_990.0)
    )
    paper = PaperConfig(slippage_ticks=5)
    result = run(on_bars((0,), (1,)), bar_tape(bars), paper=paper, use_stops=False)
    assert [fill.price for fill in result.fills] == [10_020, 9_990]


def test_a_limit_order_fills_at_its_price_or_at_a_better_open() -> None:
    limit: dict[str, Any] = {"type": OrderType.LIMIT, "price": 9_900}
    inside = days(FLAT, (10_000.0, 10_000.0, 9_890.0, 9_950.0))
    below = days(FLAT, (9_800.0, 9_850.0, 9_700.0, 9_850.0))
    above = days(FLAT, (10_000.0, 10_000.0, 9_910.0, 9_950.0), (9_800.0, 9_900.0, 9_800.0, 9_800.0))
    for bars, expected in ((inside, [9_900]), (below, [9_800]), (above, [])):
        result = run(on_bars((0,), **limit), bar_tape(bars), use_stops=False)
        assert [fill.price for fill in result.fills] == expected
    assert result.expired == {"the day ended": 1}


def test_an_ioc_order_ends_after_the_open() -> None:
    limit: dict[str, Any] = {
        "type": OrderType.LIMIT,
        "price": 9_900,
        "time_in_force": TimeInForce.IOC,
    }
    result = run(
        on_bars((0,), **limit), bar_tape(days(FLAT, (10_000.0, 10_000.0, 9_800.0, 9_900.0)))
    )
    assert (result.fills, result.expired) == ((), {"IOC found no price": 1})


def test_a_day_order_of_a_coin_lives_as_long_as_its_bar() -> None:
    closes = [MONDAY + DAY_S * n for n in (1, 2)]  # midnight UTC; the day ends at 15:00 UTC
    bars = {
        "KRW-BTC": list(zip(closes, (FLAT, (10_000.0, 10_000.0, 9_800.0, 9_900.0)), strict=True))
    }
    limit: dict[str, Any] = {"type": OrderType.LIMIT, "price": 9_900}
    result = run(on_bars((0,), **limit), bar_tape(bars), use_stops=False)
    assert [fill.price for fill in result.fills] == [9_900]


def test_fees_and_taxes_are_those_of_the_class() -> None:
    result = run_backtest(
        on_bars((0,), (1,)),
        bar_tape(days(FLAT, FLAT, FLAT)),
        BacktestConfig(costs=FeesConfig(krx_fee=0.001, krx_sale_tax=0.002), use_stops=False),
    )
    assert [fill.fee for fill in result.fills] == [500, 1500]
    assert result.performance.costs == 2000


def test_a_quantity_above_the_limits_is_cut_and_counted() -> None:
    result = run(on_bars((0,), quantity=70), bar_tape(days(FLAT, FLAT)), use_stops=False)
    assert [fill.quantity for fill in result.fills] == [50]
    assert result.cuts == {"risk.limits.max_order_value": 1}
    limits = RiskLimitsConfig(max_order_value=100_000_000)
    result = run(on_bars((0,), quantity=2000), bar_tape(days(FLAT, FLAT)), limits=limits)
    assert [fill.quantity for fill in result.fills] == [1500]  # 15 % of the equity
    assert result.cuts == {"risk.limits.max_exposure or max_symbol_exposure": 1}


def test_part_of_the_volume_is_filled_along_the_bar() -> None:
    paper = PaperConfig(volume_share=0.1)
    bars = days(FLAT, (10_000.0, 10_100.0, 9_900.0, 10_050.0))
    result = run(on_bars((0,)), bar_tape(bars, volume=400), paper=paper, use_stops=False)
    assert [(int(fill.quantity), int(fill.price)) for fill in result.fills] == [
        (10, 10_000), (10, 9_900), (10, 10_100), (10, 10_050)
    ]  # fmt: skip


class Watching(Strategy[NoParams], key="watching"):
    """Keeps everything it is called with."""

    timeframes = ("1m", "1d")
    timer_s = 3600.0

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.calls: list[tuple[str, float, object]] = []

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        self.calls.append(("bar", view.now.timestamp(), bar))
        return ()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.calls.append(("tick", view.now.timestamp(), tick.price))
        return ()

    def on_timer(self, view: View) -> Iterable[Signal]:
        self.calls.append(("timer", view.now.timestamp(), None))
        return ()

    def evaluate(self, view: View) -> Iterable[Signal]:
        self.calls.append(("evaluate", view.now.timestamp(), view.ticks[SYMBOL].price))
        return ()


def test_a_strategy_sees_closes_only_and_longer_bars_when_they_are_due() -> None:
    closes = minute_closes(390) + minute_closes(1, MONDAY + DAY_S)
    prices = rising(391)
    watching = Watching.from_params()
    run(watching, bar_tape({SYMBOL: list(zip(closes, prices, strict=True))}, Timeframe.M1))
    of_kind = {kind: [call for call in watching.calls if call[0] == kind]
               for kind in ("bar", "tick", "timer", "evaluate")}  # fmt: skip
    assert [each[2] for each in of_kind["tick"]] == [each[3] for each in prices]
    assert [each[1] for each in of_kind["tick"]] == closes
    assert [each[1:] for each in of_kind["evaluate"]] == [each[1:] for each in of_kind["tick"]]
    day = next(
        bar for _, _, bar in of_kind["bar"] if isinstance(bar, Bar) and bar.timeframe == "1d"
    )
    assert day[2:8] == (MONDAY + CLOSE_S, prices[0][0], max(each[1] for each in prices[:390]),
                        min(each[2] for each in prices[:390]), prices[389][3], 390_000)  # fmt: skip
    minutes = [
        bar for _, _, bar in of_kind["bar"] if isinstance(bar, Bar) and bar.timeframe == "1m"
    ]
    assert [bar[2:7] for bar in minutes] == [
        (close, *each) for close, each in zip(closes, prices, strict=True)
    ]
    assert all(bar.at <= now for _, now, bar in of_kind["bar"] if isinstance(bar, Bar))
    assert [each[1] for each in of_kind["timer"]][:2] == [MONDAY + 3600, MONDAY + 7200]


def test_a_timeframe_shorter_than_the_bars_is_refused() -> None:
    with pytest.raises(RefusedError, match="has the timeframe 1m; the data has bars of 1d"):
        run(on_bars((0,), timeframes=("1m",)), bar_tape(days(FLAT, FLAT)))


def test_a_step_strategy_without_timeframes_runs_on_closes() -> None:
    prices = [10_000.0, 9_900, 9_920, 9_800, 9_700, 9_710, 9_600, 9_900, 10_000, 10_100, 10_200]
    bars = days(*[(each + 50, each + 100, each - 100, each) for each in prices])
    params = {"length": 3, "low": 40, "high": 60}
    result = run(RsiScalper.from_params(params), bar_tape(bars), use_stops=False)
    assert result.way == "generic"
    opens = {each + 50 for each in prices}
    assert result.fills
    assert {float(fill.price) for fill in result.fills} <= opens


class Second(OnBars, key="second"):
    pass


def test_two_strategies_share_the_account_and_each_symbol_has_one() -> None:
    bars = {symbol: days(*rising(8))[SYMBOL] for symbol in (SYMBOL, "000660")}
    first, second = on_bars((0,), (4,)), Second.from_params()
    first.symbols = (SYMBOL,)
    second.buys, second.sells = frozenset((1,)), frozenset((3,))
    result = run((first, second), bar_tape(bars), use_stops=False)
    one, two = result.strategies
    assert (one.key, one.orders, one.fills, one.trades) == ("on_bars", 2, 2, 1)
    assert (two.key, two.orders, two.fills, two.trades) == ("second", 2, 2, 1)
    assert two.refusals == {"strategy on_bars holds it": 2}
    assert {(trade.strategy, trade.symbol) for trade in result.trades} == {
        ("on_bars", SYMBOL), ("second", "000660")
    }  # fmt: skip
    with pytest.raises(RefusedError, match="two strategies have the same key"):
        run((first, on_bars(())), bar_tape(bars))


def test_a_planted_look_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that may fill on the close it was decided on breaks the check of all fills."""
    tape = bar_tape(days(*rising(6)))
    assert_fills_are_inside(run(on_bars((1,), (3,)), tape, use_stops=False), tape)
    monkeypatch.setattr(BacktestOrderManager, "_waits_for_open", lambda *_: False)
    result = run(on_bars((1,), (3,)), tape, use_stops=False)
    assert len(result.fills) == 2
    with pytest.raises(AssertionError, match="is in no bar after its decision"):
        assert_fills_are_inside(result, tape)


def test_reasons_of_exits_are_in_the_trades() -> None:
    result = run(on_bars((0,), (2,)), bar_tape(days(FLAT, FLAT, FLAT, FLAT)))
    assert [trade.reason for trade in result.trades] == [IntentType.EXIT_SIGNAL]


class Averages(Strategy[NoParams], key="averages"):
    """Keeps its average at each bar that it is called with."""

    timeframes = ("1m", "5m")
    indicators = ("sma(6)", "ema(2)")

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.calls: list[tuple[Bar, list[float]]] = []

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        values = [view.indicator(SYMBOL, each, "sma(6)") for each in self.timeframes]
        self.calls.append((bar, values))
        return ()


@settings(max_examples=30)
@given(st.integers(0, 190))
def test_bars_before_the_start_warm_a_strategy_up(first: int) -> None:
    closes = minute_closes(200)
    tape = bar_tape({SYMBOL: list(zip(closes, rising(200), strict=True))}, Timeframe.M1)
    start = MONDAY + 60 * first
    whole, part = Averages(NoParams()), Averages(NoParams())
    run(whole, tape)
    run(part, tape.select(None, start))
    assert part.calls == [each for each in whole.calls if each[0].at > start]
    if first >= 80:  # the warm-up of ema(2) is 16 bars of five minutes
        assert part.calls[0][0].at == start + 60


def test_a_part_of_a_part_keeps_the_bars_before_both() -> None:
    closes = day_closes(10)
    tape = bar_tape({"005930": [(at, (100.0, 101.0, 99.0, 100.0)) for at in closes]})
    part = tape.select(None, closes[2])
    whole, inner = part.select(None), part.select(None, closes[4], closes[8])
    assert (whole.rows["at"].tolist(), whole.digest) == (closes[3:], part.digest)
    assert inner.rows["at"].tolist() == closes[5:9]
    assert inner.before["at"].tolist() == closes[:5]
