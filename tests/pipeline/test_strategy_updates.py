"""Strategies get their fills and order changes: in their lane, in a process, in a replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qts.backtest import BacktestConfig, run_backtest
from qts.brokers import FeesConfig
from qts.domain import (
    Fill,
    IntentType,
    OrderSnapshot,
    OrderType,
    Position,
    Side,
    SystemClock,
    Tick,
)
from qts.pipeline import (
    DecisionJournal,
    IsolatedRunner,
    JournaledStore,
    JournalHeader,
    Portfolio,
    RunnerHooks,
    StrategyConfig,
    StrategyRunner,
    StrategyUpdate,
    replay_decisions,
)
from qts.pipeline.decision_journal import Entry, StrategyCallEntry
from qts.risk import RiskLimitsConfig
from qts.strategies import NoParams, Signal, Strategy, View
from tests.backtest.tapes import prices, tape
from tests.instruments import LISTED
from tests.pipeline.portfolios import NOW, tick, view
from tests.pipeline.test_scheduler import BUY, Bench, wanted

# ruff: noqa: ARG002 - signatures of Strategy

HERE = f"{__name__}:Answering"
D = Decimal


class Answering(Strategy[NoParams], key="answering"):
    """Sells each purchase a tenth higher, and says in the reason what it was called with."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.calls: list[str] = []

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.calls.append("tick")
        return ()

    def on_fill(self, fill: Fill, view: View) -> Iterable[Signal]:
        self.calls.append(f"fill {fill.quantity:f}")
        if fill.side is Side.BUY:
            yield Signal(
                symbol=fill.symbol,
                side=Side.SELL,
                at=fill.at.timestamp(),
                type=OrderType.LIMIT,
                price=fill.price * D("1.1"),
                intent_type=IntentType.EXIT_TP,
                reason=f"{len(self.calls)} calls, {view.quantity(fill.symbol):f} held",
            )

    def on_order(self, order: OrderSnapshot, view: View) -> Iterable[Signal]:
        self.calls.append(f"order {order.state} {order.filled:f} {order.remaining:f}")
        if order.state == "REJECTED":
            raise ValueError(order.reason)
        return ()


def fill(quantity: str = "3") -> Fill:
    return Fill(
        trade_id=f"t{quantity}",
        broker_order_id="o",
        symbol="005930",
        side=Side.BUY,
        quantity=D(quantity),
        price=D("100.1"),
        fee=D("0.1"),
        at=datetime(2026, 11, 16, 1, 2, 3, 456789, tzinfo=UTC),
    )


def order(state: str, filled: str = "0", reason: str = "") -> OrderSnapshot:
    return OrderSnapshot(
        intent_id="i",
        symbol="005930",
        side=Side.BUY,
        state=state,
        filled=D(filled),
        remaining=D(3) - D(filled),
        reason=reason,
    )


UPDATES = (
    StrategyUpdate(None, order("SENT")),
    StrategyUpdate(None, order("ACKED")),
    StrategyUpdate(fill("1"), None),
    StrategyUpdate(fill("2"), order("FILLED", "3")),
    StrategyUpdate(None, order("REJECTED", reason="no money")),
)
CALLS = [
    "order SENT 0 3",
    "order ACKED 0 3",
    "fill 1",
    "fill 2",
    "order FILLED 3 0",
    "order REJECTED 0 3",
]


class Lane:
    """Calls a strategy as the lanes do; keeps what it delivers and journals."""

    def __init__(
        self, journal: DecisionJournal, make: Callable[[RunnerHooks], StrategyRunner]
    ) -> None:
        self.got: list[Signal] = []
        self.late: list[Signal] = []
        self.entries: list[Entry] = []
        self._loop = asyncio.get_running_loop()
        portfolio = Portfolio(SystemClock(), LISTED, JournaledStore(SystemClock(), journal))
        portfolio.load(D(1000), [Position("005930", D(3), D(100))])
        portfolio.apply_tick(tick())

        def record(entry: Entry) -> None:
            journal.append(entry)
            self.entries.append(entry)

        self.runner = make(
            RunnerHooks(portfolio.view, self._wake, self._deliver, self._loop, record)
        )

    def _wake(self, _key: str) -> None:
        self._loop.run_in_executor(None, self.runner.run_pending)

    def _deliver(
        self, _runner: StrategyRunner, found: list[Signal], *, after_order: bool = False
    ) -> None:
        (self.late if after_order else self.got).extend(found)

    async def update(self, *updates: StrategyUpdate) -> None:
        before = self._handled
        for each in updates:
            self.runner.update(each)
        async with asyncio.timeout(30):
            while self._handled < before + len(updates):  # noqa: ASYNC110 - the runner has no signal
                await asyncio.sleep(0.002)

    @property
    def _handled(self) -> int:
        calls = [each for each in self.entries if isinstance(each, StrategyCallEntry)]
        return sum(len(each.updates) for each in calls)


@asynccontextmanager
async def in_lane(journal: DecisionJournal) -> AsyncIterator[Lane]:
    yield Lane(journal, lambda hooks: StrategyRunner(Answering(NoParams()), hooks))


@asynccontextmanager
async def isolated(journal: DecisionJournal) -> AsyncIterator[Lane]:
    made = Lane(journal, lambda hooks: IsolatedRunner(HERE, Answering(NoParams()), hooks))
    assert isinstance(made.runner, IsolatedRunner)
    task = asyncio.create_task(made.runner.run())
    try:
        await made.runner.evaluate()  # its process is ready
        yield made
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_fills_and_orders_are_handled_in_their_order_before_ticks() -> None:
    strategy, loop = Answering(NoParams()), asyncio.get_running_loop()
    runner = StrategyRunner(
        strategy, RunnerHooks(view, lambda _: None, lambda *_, **__: None, loop, None)
    )
    runner.tick(tick())
    for each in UPDATES:
        runner.update(each)
    runner.run_pending()
    assert strategy.calls == [*CALLS, "tick"]
    assert runner.errors == 1


@pytest.mark.parametrize("run", [in_lane, isolated])
async def test_what_a_strategy_answers_is_delivered_journaled_and_replayed(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.journal"
    header = JournalHeader(NOW, (StrategyConfig(source=HERE),), RiskLimitsConfig().exact)
    with DecisionJournal(path, header) as journal:
        async with run(journal) as lane:
            await lane.update(*UPDATES[:3])
            await lane.update(*UPDATES[3:])
            await asyncio.sleep(0)
    assert lane.got == []
    assert [each.reason for each in lane.late] == ["3 calls, 3 held", "4 calls, 3 held"]
    assert [each.price for each in lane.late] == [D("110.11")] * 2
    replayed = replay_decisions(path)
    assert replayed.differences == []
    assert replayed.calls >= 6
    assert replayed.signals == 2


async def test_a_strategy_without_these_methods_is_not_woken() -> None:
    woken: list[str] = []
    loop = asyncio.get_running_loop()
    plain = type("Plain", (Strategy,), {})(NoParams())
    runner = StrategyRunner(
        plain, RunnerHooks(view, woken.append, lambda *_, **__: None, loop, None)
    )
    runner.update(UPDATES[0])
    assert woken == []


async def test_a_signal_after_a_fill_waits_for_the_order_in_flight() -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.heard(wanted(BUY, 0.001))
    answer = wanted(BUY, 0.003)
    bench.heard(wanted(BUY, 0.002))  # of a tick: dropped
    bench.pipeline.on_signals(bench.runner, [answer], after_order=True)
    bench.trades.may_fill.set()
    async with asyncio.timeout(30):
        while len(bench.trades.asked) < 2:
            bench.trades.was_asked.clear()
            await bench.trades.was_asked.wait()
    assert [at for _, _, at in await bench.done()] == [0.001, 0.003]


class Buying(Answering, key="buying"):
    """Buys once, and sells what it bought as soon as it has it."""

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if not self.calls:
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at, quantity=D(3))

    def on_fill(self, fill: Fill, view: View) -> Iterable[Signal]:
        for each in super().on_fill(fill, view):
            yield Signal(
                symbol=each.symbol, side=each.side, at=each.at, intent_type=each.intent_type
            )


def test_a_backtest_makes_the_same_calls_in_the_same_order() -> None:
    strategy = Buying(NoParams())
    config = BacktestConfig(costs=FeesConfig(krx_fee=0, krx_sale_tax=0), use_stops=False)
    result = run_backtest(strategy, tape(prices([10_000, 10_010, 10_020, 10_030])), config)
    assert [each.side for each in result.fills] == [Side.BUY, Side.SELL]
    assert strategy.calls == [
        "order SENT 0 3",
        "order ACKED 0 3",
        "fill 3",
        "order FILLED 3 0",
        "order SENT 0 3",
        "order ACKED 0 3",
        "fill 3",
        "order FILLED 3 0",
    ]
