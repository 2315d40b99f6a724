"""The example strategies on bars trade as their pages say."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from qts.backtest import BacktestConfig, BacktestResult, run_backtest
from qts.domain import Account, Bar, Fill, Position, Side, Tick, Timeframe
from qts.risk import RiskLimitsConfig
from qts.strategies import Signal, Strategy, StrategyBars, View, encode_state, load_strategy
from tests.backtest.bars import bar_tape, day_closes
from tests.backtest.tapes import BEGIN, tape

EXAMPLES = Path(__file__).parents[2] / "examples/strategies"
DAY_S = 86_400


def run(name: str, ticks: list[Tick], **params: Any) -> BacktestResult:
    strategy = load_strategy(f"{EXAMPLES / name}").from_params(params)
    result = run_backtest(strategy, tape(ticks), BacktestConfig(use_stops=False))
    assert not result.errors
    return result


def test_minute_averages_buy_the_rise_and_sell_the_fall() -> None:
    ticks = [
        Tick("KRW-BTC", 1e6 + 1000 * round(50 * math.sin(n / 1200)), 1.0, 0, 0, BEGIN + 2 * n)
        for n in range(7200)
    ]
    result = run("minute_averages.py:MinuteAverages", ticks, fast=3, slow=10)
    sides = [fill.side for fill in result.fills]
    assert sides[:2] == [Side.BUY, Side.SELL]
    assert min(fill.at.timestamp() for fill in result.fills) >= BEGIN + 600  # ten bars


BREAKOUT = "volatility_breakout.py:VolatilityBreakout"
YESTERDAY = [100, 110, 90, 100]  # with an open of 100, the breakout is at 110


def days_of_prices(*days: list[int]) -> list[Tick]:
    return [
        Tick("KRW-BTC", 1e4 * price, 1.0, 0, 0, BEGIN + day * DAY_S + 1 + n)
        for day, prices in enumerate(days)
        for n, price in enumerate(prices)
    ]


def test_the_breakout_buys_above_half_of_yesterdays_range_and_sells_the_next_day() -> None:
    result = run(BREAKOUT, days_of_prices(YESTERDAY, [100, 105, 109, 110, 112], [120, 121]))
    bought, sold = result.fills
    assert (bought.side, sold.side) == (Side.BUY, Side.SELL)
    assert bought.price >= 1_100_000  # the open and half of the range
    assert sold.at.timestamp() >= BEGIN + 2 * DAY_S


def test_the_breakout_buys_once_in_a_day_also_where_a_stop_has_sold() -> None:
    strategy = load_strategy(f"{EXAMPLES / BREAKOUT}").from_params({})
    prices = [100, 110, 111, 107, 106, 106, 112, 113]  # the stop is at -2 %
    ticks = days_of_prices(YESTERDAY, prices, [120, 121, 160, 161], [160, 161])
    result = run_backtest(strategy, tape(ticks))
    assert [(fill.side, int((fill.at.timestamp() - BEGIN) // DAY_S)) for fill in result.fills] == [
        (Side.BUY, 1),
        (Side.SELL, 1),
        (Side.BUY, 2),
        (Side.SELL, 3),
    ]


def test_the_breakout_keeps_after_a_restart_what_it_bought_on_the_day() -> None:
    symbol, noon = "KRW-BTC", BEGIN + DAY_S // 2
    held = Position(symbol, Decimal(1), Decimal(110))
    fill = Fill(
        trade_id="1",
        broker_order_id="1",
        symbol=symbol,
        side=Side.BUY,
        quantity=Decimal(1),
        price=Decimal(110),
        fee=Decimal(0),
        at=datetime.fromtimestamp(noon, UTC),
    )

    def view(strategy: Strategy[Any]) -> View:
        series = StrategyBars.of(strategy)
        assert series is not None
        series.add(Bar(symbol, Timeframe("1d"), BEGIN, 100, 110, 90, 100, 1, 100), ())
        account = Account(cash=Decimal(0), holdings=())
        return View(fill.at, {}, {symbol: held}, account, Decimal(0), series=series)

    def signals(strategy: Strategy[Any], at: float) -> list[Side]:
        found = strategy.on_tick(Tick(symbol, 111, 1, 0, 0, at), view(strategy))
        return [each.side for each in found if isinstance(each, Signal)]

    first = load_strategy(f"{EXAMPLES / BREAKOUT}").from_params({})
    assert list(first.on_fill(fill, view(first))) == []
    second = first.renewed()
    second.restore_state(encode_state(second.key, first.state))
    assert signals(second, noon + 60) == []
    assert signals(second, noon + DAY_S) == [Side.SELL]
    assert signals(second, noon + DAY_S + 1) == [Side.SELL]  # until it is sold


WIDE = RiskLimitsConfig(max_order_value=10**9, max_symbol_exposure=0.9)


def run_days(name: str, closes: dict[str, list[float]], **params: Any) -> BacktestResult:
    """Run an example over days that open and close at these prices."""
    count = len(next(iter(closes.values())))
    bars = {
        symbol: [(at, (p, p, p, p)) for at, p in zip(day_closes(count), found, strict=True)]
        for symbol, found in closes.items()
    }
    strategy = load_strategy(f"{EXAMPLES / name}").from_params(params)
    config = BacktestConfig(use_stops=False, limits=WIDE, cash=Decimal(100_000_000))
    result = run_backtest(strategy, bar_tape(bars), config)
    assert not result.errors
    return result


def test_daily_averages_hold_the_rise() -> None:
    rises = [10_000.0] * 25 + [10_000.0 + 100 * n for n in range(10)]
    falls = [11_000.0 - 100 * n for n in range(20)]
    result = run_days("daily_averages.py:DailyAverages", {"005930": rises + falls})
    assert [fill.side for fill in result.fills] == [Side.BUY, Side.SELL]
    assert result.fills[0].at < result.fills[1].at


def test_rebalancing_buys_once_and_trims_what_rose() -> None:
    days = 45  # from mid-November: three months
    rising = [10_000.0] * 8 + [20_000.0] * (days - 8)
    flat = [10_000.0] * days
    result = run_days("rebalancing.py:Rebalancing", {"005930": rising, "000660": flat})
    by_symbol = {
        symbol: [fill.side for fill in result.fills if fill.symbol == symbol]
        for symbol in ("005930", "000660")
    }
    assert by_symbol == {"005930": [Side.BUY, Side.SELL], "000660": [Side.BUY]}


def test_the_pair_buys_the_cheap_one_and_sells_it_at_the_mean() -> None:
    days = 60
    first = [10_000.0 + 10 * (n % 3) for n in range(days)]
    second = [10_000.0 + 10 * (n % 2) for n in range(days)]
    for n in range(30, 34):
        first[n] = 9_000.0
    result = run_days("pairs.py:Pairs", {"005930": first, "000660": second})
    bought, sold = [fill for fill in result.fills if fill.symbol == "005930"][:2]
    assert (bought.side, sold.side) == (Side.BUY, Side.SELL)
    assert bought.price < sold.price
