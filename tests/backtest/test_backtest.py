"""The backtest engine: fills, stops, limits, days and refused data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.backtest import BacktestConfig, BacktestResult, run_backtest
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio
from qts.backtest.stops import BacktestStops
from qts.brokers import FeesConfig, PaperConfig
from qts.domain import IntentType, OrderType, Position, RefusedError, Side, Tick, TimeInForce
from qts.risk import (
    EmergencyOrder,
    HoldTimeLimits,
    OrderProposal,
    RiskLimitsConfig,
    StopsConfig,
)
from qts.strategies import NoParams, RsiScalper, Signal, Strategy, View
from tests.backtest.tapes import BEGIN, prices, tape, walk
from tests.instruments import LISTED

# ruff: noqa: ARG002 - signatures of Strategy

FREE = FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0)
DAY = 86_400.0


class Scripted(Strategy[NoParams]):
    """Buys and sells at the given events, counted from 0."""

    buys: tuple[int, ...] = ()
    sells: tuple[int, ...] = ()

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.count = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        number, self.count = self.count, self.count + 1
        if number in self.buys:
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)
        if number in self.sells:
            kind = IntentType.EXIT_SIGNAL
            yield Signal(symbol=tick.symbol, side=Side.SELL, at=tick.at, intent_type=kind)


def scripted(buys: tuple[int, ...], sells: tuple[int, ...] = ()) -> Scripted:
    strategy = Scripted.from_params()
    strategy.buys, strategy.sells = buys, sells
    return strategy


def run(strategy: Strategy[Any], ticks: list[Tick], **settings: Any) -> BacktestResult:
    return run_backtest(strategy, tape(ticks), BacktestConfig(costs=FREE, **settings))


def test_an_order_fills_on_the_next_event_and_never_on_its_own() -> None:
    result = run(scripted((0,), (2,)), prices([10_000, 10_100, 10_200, 10_150]), use_stops=False)
    bought, sold = result.fills
    assert (bought.price, bought.at.timestamp()) == (Decimal(10100), BEGIN + 1)
    assert (sold.price, sold.at.timestamp()) == (Decimal(10150), BEGIN + 3)
    (trade,) = result.trades
    assert trade.quantity == 50  # 500,000 won of 10,000
    assert trade.profit == 50 * 50
    assert result.performance.end_equity == 100_002_500


def test_fees_and_taxes_are_taken() -> None:
    costs = FeesConfig(krx_fee=0.001, krx_sale_tax=0.002)
    config = BacktestConfig(costs=costs, use_stops=False)
    result = run_backtest(scripted((0,), (2,)), tape(prices([10_000] * 4)), config)
    assert [fill.fee for fill in result.fills] == [500, 1500]
    assert result.trades[0].profit == -2000
    assert result.performance.end_equity == 100_000_000 - 2000
    assert result.performance.costs == 2000


def test_a_stop_closes_a_falling_position() -> None:
    falling = [10_000, 10_000, 9_990, 9_840, 9_790, 9_780, 9_780, 9_780]
    result = run(scripted((0,)), prices(falling))
    assert [fill.side for fill in result.fills] == [Side.BUY, Side.SELL, Side.SELL]
    half, rest = result.fills[1:]
    assert (half.quantity, half.price) == (
        Decimal(25),
        Decimal(9790),
    )  # triggered at 9,840, 1.6 % down
    assert (rest.quantity, rest.price) == (Decimal(25), Decimal(9780))
    assert result.trades[0].reason == IntentType.EXIT_MAE
    without_stops = run(scripted((0,)), prices(falling), use_stops=False)
    assert len(without_stops.fills) == 1


def test_a_position_is_closed_after_its_holding_time() -> None:
    stops = StopsConfig(holding=HoldTimeLimits(scalp_s=30.0), profit_extension_s=0.0)
    result = run(scripted((0,)), prices([10_000] * 60), stops=stops)
    bought, sold = result.fills
    assert 30 <= sold.at.timestamp() - bought.at.timestamp() <= 33
    assert result.trades[0].reason == IntentType.EXIT_TIME


class Observing(Strategy[NoParams]):
    """Records the times of its views."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.views: list[tuple[float, float]] = []

    def evaluate(self, view: View) -> Iterable[Signal]:
        latest = max((tick.at for tick in view.ticks.values()), default=0.0)
        self.views.append((view.now.timestamp(), latest))
        return ()


def test_a_cycle_does_not_see_the_event_that_follows_it() -> None:
    strategy = Observing.from_params()
    run(strategy, walk(3, length=50))
    assert len(strategy.views) == 49
    assert all(latest < now for now, latest in strategy.views)


def test_a_cycle_is_dated_when_it_was_due_and_not_when_the_next_event_came() -> None:
    strategy = Observing.from_params()
    first, second = prices([10_000.0, 10_010.0])
    run(strategy, [first, replace(second, at=BEGIN + 10.5)])
    assert strategy.views == [(BEGIN + 1, BEGIN)]


class Eager(Strategy[NoParams]):
    """Buys on every tick."""

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        return (Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at),)


def test_open_symbols_stay_within_the_limit() -> None:
    symbols = [f"{n:06}" for n in range(1, 9)]
    limits = RiskLimitsConfig(max_open_symbols=3, orders_per_minute=1000)
    result = run(Eager.from_params(), walk(5, 200, symbols), limits=limits, use_stops=False)
    assert len({fill.symbol for fill in result.fills}) == 3
    assert result.refusals["G_OPEN_SYMBOLS"] > 0


def test_orders_stay_within_the_limits_of_minute_and_day() -> None:
    limits = RiskLimitsConfig(orders_per_day=7, orders_per_minute=2)
    result = run(Eager.from_params(), walk(5, 300), limits=limits, use_stops=False)
    times = [p.decided_at.timestamp() for p in result.proposals]
    assert len(times) == 7
    assert all(later - earlier >= 60 for earlier, later in zip(times, times[2:], strict=False))
    assert result.refusals["G_ORDER_RATE"] > 0
    assert result.refusals["G_DAILY_ORDERS"] > 0


class Half(Strategy[NoParams]):
    """Fails on every other tick, then on all of them."""

    count = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.count += 1
        if self.count % 2 or self.count > 40:
            raise ZeroDivisionError("failed")
        return ()


def test_errors_are_counted_and_disable_the_strategy() -> None:
    strategy = Half.from_params()
    result = run(strategy, prices([10_000.0] * 100))
    assert result.stopped.startswith("20 errors in a row")
    assert (result.errors, strategy.count) == (20 + 20, 60)


class Fixed(Strategy[NoParams]):
    signals: Any = ()

    def on_tick(self, tick: Tick, view: View) -> Any:
        return self.signals


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"quantity": Decimal(0)}, "nothing left within the limits"),
        ({"side": Side.SELL}, "nothing left within the limits"),
        ({"type": OrderType.LIMIT, "price": Decimal(10003)}, "G_TICK"),
        ({"type": OrderType.LIMIT, "price": Decimal(20000)}, "G_BAND"),
    ],
)
def test_a_bad_signal_is_refused_with_its_reason(fields: dict[str, Any], reason: str) -> None:
    strategy = Fixed.from_params()
    given = {"symbol": "005930", "side": Side.BUY, "at": BEGIN, **fields}
    strategy.signals = (Signal(**given),)
    result = run(strategy, prices([10_000.0] * 3))
    assert not result.fills
    assert result.refusals[reason] == 3


def test_an_object_that_is_not_a_signal_is_an_error_of_the_strategy() -> None:
    strategy = Fixed.from_params()
    strategy.signals = ("buy!",)
    result = run(strategy, prices([10_000.0] * 3))
    assert (result.errors, result.trips) == (3, {})


def test_a_quantity_above_the_limit_is_reduced_to_it() -> None:
    strategy = Fixed.from_params()
    strategy.signals = (Signal(symbol="005930", side=Side.BUY, at=BEGIN, quantity=Decimal(500)),)
    result = run(strategy, prices([10_000.0] * 5), use_stops=False)
    assert [fill.quantity for fill in result.fills] == [50]


def test_a_limit_order_rests_until_the_day_ends() -> None:
    strategy = Fixed.from_params()
    strategy.signals = (
        Signal(
            symbol="005930",
            side=Side.BUY,
            at=BEGIN,
            type=OrderType.LIMIT,
            price=Decimal(9_900),
        ),
    )
    today, tomorrow = prices([10_000.0] * 3), prices([9_800.0] * 3, start=BEGIN + DAY)
    result = run(strategy, [*today, *tomorrow])
    assert len(result.proposals) == 1
    assert not result.fills
    filled = run(strategy, [*today, *prices([9_800.0] * 3, start=BEGIN + 3)])
    assert filled.fills[0].price == 9_900


@pytest.mark.parametrize(
    ("symbol", "time_in_force", "filled"),
    [
        ("005930", TimeInForce.DAY, True),
        ("005930", TimeInForce.IOC, False),
        ("005930", TimeInForce.FOK, False),
        ("005930", 2.5, False),  # over before the price comes
        ("005930", 60.0, True),
        ("KRW-BTC", TimeInForce.GTC, True),
    ],
)
def test_a_limit_order_rests_for_its_time_in_force(
    symbol: str, time_in_force: TimeInForce | float, filled: bool
) -> None:
    strategy = Fixed.from_params()
    strategy.signals = (
        Signal(
            symbol=symbol,
            side=Side.BUY,
            at=BEGIN,
            type=OrderType.LIMIT,
            price=Decimal(9_900),
            time_in_force=time_in_force,
        ),
    )
    ticks = prices([10_000.0] * 5, symbol), prices([9_800.0] * 3, symbol, start=BEGIN + 5)
    result = run(strategy, [*ticks[0], *ticks[1]])
    assert len(result.proposals) == 1
    assert bool(result.fills) == filled


@pytest.mark.parametrize(
    ("time_in_force", "filled"), [(TimeInForce.DAY, False), (TimeInForce.GTC, True)]
)
def test_only_gtc_outlives_the_day(time_in_force: TimeInForce, filled: bool) -> None:
    strategy = Fixed.from_params()
    strategy.signals = (
        Signal(
            symbol="KRW-BTC",
            side=Side.BUY,
            at=BEGIN,
            type=OrderType.LIMIT,
            price=Decimal(9_900),
            time_in_force=time_in_force,
        ),
    )
    today = prices([10_000.0] * 3, "KRW-BTC")
    tomorrow = prices([9_800.0] * 3, "KRW-BTC", start=BEGIN + DAY)
    assert bool(run(strategy, [*today, *tomorrow]).fills) == filled


def test_the_order_count_restarts_every_day() -> None:
    limits = RiskLimitsConfig(orders_per_day=2)
    days = [prices([10_000.0] * 6, start=BEGIN + DAY * day) for day in range(3)]
    events = tuple(range(0, 18, 2))
    result = run(
        scripted(events, tuple(n + 1 for n in events)),
        [tick for day in days for tick in day],
        limits=limits,
        use_stops=False,
        fill_timeout_s=0.0,
    )
    entries = [p for p in result.proposals if not p.intent_type.is_exit]
    by_day = Counter(p.decided_at.date() for p in entries)
    assert list(by_day.values()) == [1, 1, 1]  # the second order of a day was the exit


def test_no_entry_after_the_account_loss_limit_until_the_next_day() -> None:
    stops = StopsConfig(mae_account=0.001, mae_half=0.5, mae_full=0.5)
    limits = RiskLimitsConfig(max_order_value=10_000_000)
    crash = [10_000.0, 10_000.0, *[9_700.0] * 8]
    days = [*prices(crash), *prices([9_700.0] * 3, start=BEGIN + DAY)]
    result = run(scripted((0, 8, 10)), days, stops=stops, limits=limits)
    assert result.trips["FS104"] == 1
    assert result.refusals["G_SAFETY"] == 1
    assert [fill.side for fill in result.fills] == [Side.BUY, Side.SELL, Side.BUY]
    assert result.fills[2].at.timestamp() > BEGIN + DAY


def test_partial_fills_are_one_trade() -> None:
    paper = PaperConfig(volume_share=0.1, latency_ms=1)
    ticks = prices([10_000.0] * 20)
    result = run(scripted((0,), (10,)), ticks, paper=paper, use_stops=False)
    assert [fill.quantity for fill in result.fills] == [10] * 10
    (trade,) = result.trades
    assert (trade.quantity, trade.profit) == (Decimal(50), Decimal(0))


def test_invalid_prices_are_skipped() -> None:
    odd = [10_000.0, math.nan, 0.0, -5.0, math.inf, 10_000.0]
    strategy = scripted(())
    run(strategy, prices(odd))
    assert strategy.count == 2


def test_equity_is_initial_cash_plus_profits_and_open_positions() -> None:
    for seed in range(5):
        result = run_backtest(RsiScalper.from_params({"length": 5}), tape(walk(seed)))
        realised = sum((trade.profit for trade in result.trades), Decimal(0))
        last = {tick.symbol: tick.price for tick in walk(seed) if 0 < tick.price < math.inf}
        open_now = sum(
            (_quantity(trade.symbol, result) * Decimal(repr(last[trade.symbol])))
            + sum(
                -fill.side.sign * fill.price * fill.quantity - fill.fee
                for fill in result.fills
                if fill.symbol == trade.symbol and fill.at >= trade.opened_at
            )
            for trade in result.still_open
        )
        assert result.trades
        found = result.performance.end_equity
        assert found == pytest.approx(float(100_000_000 + realised + open_now), abs=0.01)


def _quantity(symbol: str, result: BacktestResult) -> Decimal:
    fills = [fill for fill in result.fills if fill.symbol == symbol]
    return sum((fill.side.sign * fill.quantity for fill in fills), Decimal(0))


def test_data_without_an_event_is_refused() -> None:
    with pytest.raises(RefusedError, match="no events"):
        run(scripted(()), [])


def test_data_out_of_order_is_refused() -> None:
    ticks = prices([10_000.0] * 5)
    with pytest.raises(RefusedError, match=r"event 4, 005930: its time is 3\.0 s before"):
        run(scripted(()), [*ticks[:3], replace(ticks[0], at=BEGIN - 1)])


def test_a_clock_set_back_by_less_than_a_second_is_accepted() -> None:
    ticks = prices([10_000.0] * 5)
    ticks[3] = replace(ticks[3], at=BEGIN + 1.5)
    strategy = scripted(())
    assert run(strategy, ticks).events == 5


def test_a_backtest_needs_cash() -> None:
    for cash in ("0", "-1", "NaN"):
        with pytest.raises(RefusedError, match="expected more than 0"):
            BacktestConfig(cash=Decimal(cash))


@given(st.integers(1, 10**22))
def test_a_stop_sells_exactly_what_is_held(units: int) -> None:
    """The native stops count in doubles, which have fewer digits than a quantity may have."""
    held = Decimal(units).scaleb(-8)
    clock, proposals = BacktestClock(), list[OrderProposal]()
    portfolio = BacktestPortfolio(clock, LISTED)
    portfolio.load(portfolio.cash, [Position("KRW-XYZ", held, Decimal(1))])

    def submit(proposal: OrderProposal) -> str:
        proposals.append(proposal)
        return ""

    kind = RsiScalper.kind
    stops = BacktestStops(
        StopsConfig(), lambda _symbol: (kind, None), portfolio, clock, submit, lambda *_: None
    )
    for share in (1.0, 0.5):
        exit_order = EmergencyOrder(
            symbol="KRW-XYZ",
            side="SELL",
            qty=float(held) * share,
            reason=IntentType.EXIT_MAE,
            price=1.0,
        )
        stops._on_event("EMERGENCY_ORDER", exit_order)
    stops._send_exits()
    part, everything = sorted(each.quantity for each in proposals)
    assert everything == held
    assert 0 <= part <= held
    assert part == part.quantize(Decimal("0.00000001"))
