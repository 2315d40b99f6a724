"""The backtest of a run: the account it begins with, its parameters, its settings and its code."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from qts.app.account_configs import backtest_config, journal_header
from qts.backtest import BacktestConfig, Opening, run_backtest
from qts.backtest.engine import BacktestEngine
from qts.config import load
from qts.domain import AccountKey, ExitLevels, Position, RefusedError, Side, Tick
from qts.explain.replayed import load_strategies, replay_run, settings_of, with_params
from qts.pipeline import (
    JournaledRun,
    JournalHeader,
    ParamsChange,
    PortfolioState,
    SignalOutcome,
    StrategyConfig,
)
from qts.risk import RiskLimitsConfig
from qts.strategies import Signal, Strategy, View, encode_state, source_digest
from tests.backtest.tapes import BEGIN, prices, tape
from tests.backtest.test_backtest import FREE, scripted
from tests.instruments import LISTED

D = Decimal
NOW = datetime.fromtimestamp(BEGIN, UTC)
HERE = f"{__name__}:Buyer"
# ruff: noqa: ARG002 - signatures of Strategy


class Params(msgspec.Struct, frozen=True):
    size: int = 1


class Buyer(Strategy[Params], key="buyer"):
    """Buys its size at each tick."""

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, quantity=D(self.params.size))


class Numbering(Strategy[Params], key="numbering"):
    """Buys as many as its state counts."""

    class State(msgspec.Struct):
        count: int = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.state.count += 1
        yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, quantity=D(self.state.count))


def opened(quantity: int, average: int = 10_000, owner: str = "scripted", **more: Any) -> Opening:
    held = Position("005930", D(quantity), D(average))
    return Opening(PortfolioState(D(1_000), {"005930": held}, {"005930": owner}), **more)


def header(**more: Any) -> JournalHeader:
    settings = msgspec.to_builtins(BacktestConfig(costs=FREE, use_stops=False))
    made = JournalHeader(
        NOW,
        (StrategyConfig(source=HERE, name="buyer"),),
        RiskLimitsConfig().exact,
        1,
        ("paper:x",),
        settings,
        {"buyer": source_digest(Buyer)},
    )
    return replace(made, **more)


def test_a_backtest_sells_what_the_account_held_before() -> None:
    result = run_backtest(
        scripted((), (1,)),
        tape(prices([10_000, 10_100, 10_200])),
        BacktestConfig(costs=FREE, use_stops=False),
        opening=opened(7),
    )
    (sold,) = result.fills
    assert (sold.side, sold.quantity, sold.price) == (Side.SELL, D(7), D(10_200))
    assert result.performance.start_equity == 1_000 + 7 * 10_000
    assert result.performance.end_equity == 1_000 + 7 * 10_200
    (trade,) = result.trades
    assert (trade.profit, trade.strategy) == (D(7 * 200), "scripted")
    (own,) = result.strategies
    assert (own.key, own.realised) == ("scripted", 7 * 200)


def test_the_stops_of_a_backtest_watch_what_the_account_held_before() -> None:
    falling = [10_000, 9_900, *([9_000] * 5)]
    result = run_backtest(
        scripted(()), tape(prices(falling)), BacktestConfig(costs=FREE), opening=opened(7)
    )
    assert sum(fill.quantity for fill in result.fills) == 7
    assert {each.strategy_key for each in result.proposals} == {"risk"}
    (own,) = result.strategies
    assert own.realised < 0  # of the strategy that had entered


@pytest.mark.parametrize("exits", [{"stop": 9_990}, {"target": 10_010}, {"trail": "0.0005"}])
def test_positions_from_before_keep_their_exits(exits: dict[str, Any]) -> None:
    """The prices move too little for the stops of the settings."""
    levels = ExitLevels(**{name: D(value) for name, value in exits.items()})
    path = prices([10_000, 10_005, 10_010 if "target" in exits else 9_990, 10_000, 10_000])
    results = [
        run_backtest(
            scripted(()),
            tape(path),
            BacktestConfig(costs=FREE),
            opening=opened(7, exits={"005930": levels} if kept else {}),
        )
        for kept in (False, True)
    ]
    assert [sum(fill.quantity for fill in each.fills) for each in results] == [0, 7]


def test_a_manual_position_has_the_stops_of_a_live_one() -> None:
    """Its owner is no strategy: the kind is PORTFOLIO, whose stops wait longer."""
    engine = BacktestEngine(
        [scripted(())], BacktestConfig(), LISTED, opened(7, owner="manual"), None
    )
    assert scripted(()).kind == "SCALP"
    assert engine._owner_of("005930")[0] == "PORTFOLIO"
    engine = BacktestEngine([scripted(())], BacktestConfig(), LISTED, opened(7), None)
    assert engine._owner_of("005930")[0] == "SCALP"


def test_a_backtest_says_what_became_of_each_signal() -> None:
    outcomes: list[SignalOutcome] = []
    limits = RiskLimitsConfig(orders_per_day=1)
    run_backtest(
        scripted((0, 9), (5,)),
        tape(prices([10_000] * 12)),
        BacktestConfig(costs=FREE, use_stops=False, limits=limits),
        on_signal=outcomes.append,
    )
    assert [(each.at - BEGIN, each.side, each.reason) for each in outcomes] == [
        (0, Side.BUY, ""),
        (5, Side.SELL, ""),
        (9, Side.BUY, "G_DAILY_ORDERS"),
    ]


def test_parameters_change_at_the_times_of_the_run() -> None:
    """Between two ticks, before the first one, and inside a chunk."""
    changes = [
        ParamsChange(float("-inf"), "buyer", {"size": 2}),
        ParamsChange(BEGIN + 1, "buyer", {"size": 3}),
        ParamsChange(BEGIN + 3.5, "buyer", {"size": 4}),
        ParamsChange(BEGIN + 99, "buyer", {"size": 5}),
    ]
    ticks = prices([10_000.0] * 6)
    for _ in range(2):  # a tape can be read again
        strategy = Buyer.from_params()
        played = with_params(tape(ticks), changes, {"buyer": strategy})
        seen: list[tuple[float, int]] = []
        for chunk in played:
            seen += [(at - BEGIN, strategy.params.size) for at in chunk.at.tolist()]
        assert seen == [(0, 2), (1, 2), (2, 3), (3, 3), (4, 4), (5, 4)]


def test_a_run_is_repeated_in_its_time_with_its_account_and_settings() -> None:
    run = JournaledRun(
        header=header(), opening=PortfolioState(D(1_000_000)), began=BEGIN + 2, ended=BEGIN + 4
    )
    ledger = replay_run(run, {}, tape(prices([10_000.0] * 9)), LISTED, lambda _events: None)
    assert [order.decided_at - BEGIN for order in ledger.orders] == [2, 3, 4]
    assert [order.asked for order in ledger.orders] == ["1", "1", "1"]
    assert [len(order.fills) for order in ledger.orders] == [1, 1, 0]  # no tick after the run
    assert ledger.orders[0].fills[0].at.timestamp() == BEGIN + 3


def test_strategies_begin_with_the_states_of_the_run() -> None:
    instance = StrategyConfig(source=f"{__name__}:Numbering", name="first")
    run = JournaledRun(
        header=header(strategies=(instance,), sources={"first": source_digest(Numbering)}),
        opening=PortfolioState(D(10_000_000)),
        states={"first": encode_state("first", Numbering.State(count=40))},
        began=BEGIN,
        ended=BEGIN + 1,
    )
    for _ in range(2):  # each backtest has strategies of its own
        ledger = replay_run(run, {}, tape(prices([10_000.0] * 3)), LISTED, lambda _events: None)
        assert [(order.strategy, order.asked) for order in ledger.orders] == [
            ("first", "41"),
            ("first", "42"),
        ]


def test_an_instance_has_its_own_capital_in_the_backtest_of_the_run() -> None:
    instance = StrategyConfig(source=HERE, name="buyer", capital=25_000)
    run = JournaledRun(
        header=header(strategies=(instance,)),
        opening=PortfolioState(D(1_000_000)),
        began=BEGIN,
        ended=BEGIN + 5,
    )
    ledger = replay_run(run, {}, tape(prices([10_000.0] * 9)), LISTED, lambda _events: None)
    assert len(ledger.orders) == 2
    assert len(ledger.refused) == 4


def test_the_header_of_a_run_holds_the_settings_of_its_backtest() -> None:
    changed = {
        "QTS_RISK__LIMITS__MAX_ORDER_VALUE": "123456",
        "QTS_BROKERS__COSTS__KRX_FEE": "0.003",
        "QTS_BROKERS__PAPER__CASH": "0",
        "QTS_PIPELINE__STRATEGIES": HERE,
    }
    config = load(None, changed)
    made = journal_header(config, config.strategy_instances(), NOW, [AccountKey("paper", "x")])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=JournalHeader)
    assert settings_of(stored).instances == config.strategy_instances()
    assert replace(settings_of(stored), instances=()) == backtest_config(config)
    assert settings_of(stored).limits.max_order_value == 123_456
    assert settings_of(stored).costs.krx_fee == 0.003
    assert stored.account_keys == ("paper:x",)
    assert [type(each) for each in load_strategies(stored)] == [Buyer]


def test_a_journal_of_an_earlier_version_is_refused() -> None:
    with pytest.raises(RefusedError, match="an earlier version of QTS wrote it"):
        settings_of(JournalHeader(NOW, (), RiskLimitsConfig().exact))


def test_settings_that_are_unknown_now_are_refused() -> None:
    settings = header().settings | {"unheard_of": 1}
    with pytest.raises(RefusedError, match="use the version that ran"):
        settings_of(header(settings=settings))


def test_a_strategy_that_was_edited_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="was edited since the run of 2026-11-16 00:00:00 UTC"):
        load_strategies(header(sources={"buyer": "another"}))
