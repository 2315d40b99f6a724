"""Signals of a tick: of those heard together one is acted on, and a symbol is free again after."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest

from qts.database import Database
from qts.domain import Clock, IntentType, ManualClock, Position, Side, SystemClock, Tick
from qts.pipeline import (
    DecisionPolicy,
    EtedaPipeline,
    Execution,
    PipelineConfig,
    PipelineHooks,
    Portfolio,
    RunnerHooks,
    StrategyRunner,
)
from qts.pipeline.cycle import Cycle
from qts.pipeline.order_changer import EndedOrder
from qts.pipeline.scheduler import CycleScheduler
from qts.pipeline.stop_orders import StopOrders
from qts.risk import OrderProposal, RiskLimitsConfig
from qts.strategies import Instruction, NoParams, Signal, Strategy, View
from tests.instruments import LISTED
from tests.pipeline.counting import ACCOUNT
from tests.pipeline.portfolios import signal, tick

BUY, SELL, EXIT = Side.BUY, Side.SELL, IntentType.EXIT_SIGNAL
NOW_S = SystemClock().now().timestamp()


class Buyer(Strategy[NoParams], key="buyer"):
    """Buys what it does not hold."""

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if not view.quantity(tick.symbol):
            yield signal(symbol=tick.symbol, at=tick.at)


class Trades:
    """Takes every proposal, and fills it once it may."""

    def __init__(self) -> None:
        self.asked: list[OrderProposal] = []
        self.was_asked = asyncio.Event()
        self.may_fill = asyncio.Event()
        self.refuses = ""

    async def submit(self, proposal: OrderProposal, timeout_s: float = 5.0) -> Execution:  # noqa: ARG002
        self.asked.append(proposal)
        if self.refuses:
            return Execution(proposal, "REJECTED", reason=self.refuses)
        self.was_asked.set()
        await self.may_fill.wait()
        return Execution(proposal, "FILLED", proposal.quantity)


class Bench:
    def __init__(
        self,
        *held: Position,
        clock: Clock | None = None,
        database: Database | None = None,
        **config: Any,
    ) -> None:
        clock = clock or SystemClock()
        self.portfolio, self.trades = Portfolio(clock, LISTED), Trades()
        self.portfolio.load(Decimal(100_000_000), held)
        limits, submitter = RiskLimitsConfig().exact, cast("Any", self.trades)
        self.codes: list[str] = []
        self.events: list[str] = []
        self.cancelled: list[tuple[str, str]] = []  # requests
        self.ends: asyncio.Queue[EndedOrder | None] = asyncio.Queue()  # what becomes of them
        self.is_paused = False  # lane P2
        self.is_ready = True
        self.stopped: set[str | None] = set()  # by the kill switch; None: the account
        hooks = PipelineHooks(
            DecisionPolicy,
            self._emit,
            self._trip,
            None,
            self._precheck,
            lambda: self.is_ready,
            itertools.count(1).__next__,
            self._cancel,
            stop_orders := StopOrders(cast("Any", database), ACCOUNT, self.portfolio, clock),
        )
        settings = PipelineConfig(**config)
        self.pipeline = EtedaPipeline(settings, self.portfolio, submitter, limits, hooks, clock)
        self.scheduler = CycleScheduler(
            [self.pipeline], lambda _symbol: self.pipeline, settings, self._emit, clock
        )
        view, loop = self.portfolio.view, asyncio.get_running_loop()
        runner_hooks = RunnerHooks(view, lambda _key: None, self.pipeline.on_signals, loop, None)
        self.runner = StrategyRunner(Buyer(NoParams()), runner_hooks)
        self.stop_orders = stop_orders
        runners = {self.runner.key: self.runner}
        stop_orders.attach(
            runners,
            self.pipeline.on_signals,
            lambda: self.pipeline.may_start,
            lambda strategy: bool({None, strategy} & self.stopped),
        )

    def _emit(self, name: str, payload: Any) -> None:
        self.events.append(name)
        if name == "ETEDA_CYCLE_START" and not self.is_paused:
            self.scheduler.start_cycle(payload.strategy_type)

    async def _precheck(self, cycle: Cycle) -> Cycle:
        return cycle

    async def _cancel(self, strategy_key: str, intent_id: UUID) -> EndedOrder | None:
        self.cancelled.append((strategy_key, str(intent_id)))
        return await self.ends.get()

    def _trip(self, code: str, _text: str) -> None:
        self.codes.append(code)

    def tick(self, at: float) -> None:
        self.portfolio.apply_tick(each := tick(at=NOW_S + at))
        self.runner.tick(each)

    def heard(self, *signals: Signal) -> None:
        self.pipeline.on_signals(self.runner, list(signals))

    async def done(self) -> list[tuple[str, Side, float]]:
        """What was traded, once all of it is over."""
        self.trades.may_fill.set()
        await self.pipeline.close()
        await asyncio.sleep(0)  # the tasks are done, and then what follows them
        return [(each.symbol, each.side, _at(each)) for each in self.trades.asked]


def _at(proposal: OrderProposal) -> float:
    return round(proposal.decided_at.timestamp() - NOW_S, 3)


def wanted(side: Side, at: float, **other: Any) -> Signal:
    return signal(side=side, at=NOW_S + at, **other)


async def test_two_ticks_of_one_turn_buy_once() -> None:
    bench = Bench()
    bench.tick(0.001)
    bench.tick(0.002)
    bench.runner.run_pending()
    await asyncio.sleep(0)  # the loop hears of it
    assert await bench.done() == [("005930", BUY, 0.002)]


async def test_no_order_waits_for_the_events_of_its_cycle() -> None:
    bench = Bench()
    bench.tick(0.0)
    published: list[int] = []  # events at the time of each order
    submit = bench.trades.submit

    async def submit_counted(proposal: OrderProposal, timeout_s: float = 5.0) -> Execution:
        published.append(len(bench.events))
        return await submit(proposal, timeout_s)

    bench.trades.submit = submit_counted  # type: ignore[method-assign]
    bench.heard(wanted(BUY, 0.001))
    assert await bench.done() == [("005930", BUY, 0.001)]
    assert published == [0]
    assert bench.events == [
        "EXTRACT_COMPLETE",
        "TRANSFORM_COMPLETE",
        "SIGNAL_GENERATED",
        "STRATEGY_SIGNAL",
        "ORDER_DECISION",
    ]


async def test_two_turns_heard_in_one_pass_of_the_loop_buy_once() -> None:
    bench = Bench()
    for at in (0.001, 0.002):
        bench.tick(at)
        bench.runner.run_pending()
    await asyncio.sleep(0)
    assert await bench.done() == [("005930", BUY, 0.001)]


async def test_symbol_is_free_again_once_its_order_is_over() -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.heard(wanted(BUY, 0.001))
    bench.heard(wanted(BUY, 0.002), wanted(BUY, 0.003, symbol="000660"))
    await bench.done()
    bench.heard(wanted(BUY, 0.004))
    assert [at for _, _, at in await bench.done()] == [0.001, 0.004]  # nobody knows the other


async def test_symbol_is_free_again_after_an_end_before_the_beginning() -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.heard(wanted(BUY, 0.001))
    (task,) = bench.pipeline._tasks
    task.cancel()
    assert await bench.done() == []
    bench.heard(wanted(BUY, 0.002))
    assert await bench.done() == [("005930", BUY, 0.002)]


@pytest.mark.parametrize("exit_first", [True, False])
async def test_exit_goes_before_an_entry_heard_with_it(exit_first: bool) -> None:
    bench = Bench(Position("005930", Decimal(7), Decimal(10_000)))
    bench.tick(0.0)
    both = [wanted(SELL, 0.001, intent_type=EXIT), wanted(BUY, 0.002)]
    bench.heard(*both if exit_first else reversed(both))
    assert await bench.done() == [("005930", SELL, 0.001)]


async def test_opposite_entries_heard_together_are_both_refused() -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.heard(wanted(BUY, 0.001), wanted(SELL, 0.002))
    assert await bench.done() == []
    (cycle,) = bench.pipeline.cycles
    assert all("GR030" in each.reason for each in cycle.evaluations)
    assert len(cycle.evaluations) == 2


async def test_the_close_waits_for_a_cycle_that_the_interval_started() -> None:
    """Its order would otherwise be submitted after the last settling of a stop."""
    bench = Bench()
    bench.portfolio.apply_tick(tick(at=NOW_S))

    async def evaluated() -> list[Instruction]:
        return [wanted(BUY, 0.001)]

    bench.runner.evaluate = evaluated  # type: ignore[method-assign]
    running = asyncio.create_task(bench.scheduler.run(bench.runner))
    await bench.trades.was_asked.wait()
    bench.pipeline.stop()
    closing = asyncio.create_task(bench.pipeline.close())
    await asyncio.sleep(0)
    assert not closing.done()
    bench.trades.may_fill.set()
    await closing
    assert [len(each.executions) for each in bench.pipeline.cycles] == [1]
    running.cancel()
    await asyncio.wait({running})


async def test_a_cycle_that_does_not_end_is_cancelled_by_the_close() -> None:
    bench = Bench(fill_timeout_s=0.1)
    bench.tick(0.0)
    bench.heard(wanted(BUY, 0.001))
    await bench.trades.was_asked.wait()
    await bench.pipeline.close()  # nothing fills
    assert not bench.pipeline._tasks


@pytest.mark.parametrize(
    ("took_s", "codes"), [(1.5, []), (8.5, ["AN040"]), (14.5, ["AN040"]), (15.5, ["FS060"])]
)
async def test_cycles_that_take_too_long_raise_a_code(took_s: float, codes: list[str]) -> None:
    """The interval is a second, and fills may take five."""
    clock = ManualClock()
    bench = Bench(clock=clock)

    async def evaluated() -> list[Instruction]:
        await clock.sleep(took_s)
        return []

    bench.runner.evaluate = evaluated  # type: ignore[method-assign]
    running = asyncio.create_task(bench.scheduler.run(bench.runner))
    await clock.advance(took_s + 0.1)
    running.cancel()
    await asyncio.wait({running})
    assert bench.codes == codes


@pytest.mark.parametrize(
    ("cash", "held", "code"),
    [
        (0, (), ""),  # an account that is empty, or invested outside QTS
        (-1000, (), "FS080"),
        (-1000, (Position("005930", Decimal(1), Decimal(1000)),), "FS080"),
        (-900, (Position("005930", Decimal(1), Decimal(1000)),), "FS050"),  # bought at 1,000
        (100, (), ""),
    ],
)
async def test_no_capital_and_no_equity_are_two_codes(
    cash: int, held: tuple[Position, ...], code: str
) -> None:
    bench = Bench()
    bench.portfolio.load(Decimal(cash), held)
    bench.portfolio.apply_tick(tick(price=800.0, at=NOW_S))

    async def evaluated() -> list[Signal]:
        return []

    cycle = await bench.pipeline.start(bench.runner.key, evaluated)
    assert (cycle.code, bench.codes) == (code, [code] if code else [])


async def test_a_start_that_was_lost_with_its_lane_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qts.pipeline.scheduler.START_REPEAT_S", 0.01)
    bench, started = Bench(), asyncio.Event()

    async def evaluated() -> list[Instruction]:
        started.set()
        return []

    bench.runner.evaluate = evaluated  # type: ignore[method-assign]
    bench.is_paused = True  # the first event is gone
    running = asyncio.create_task(bench.scheduler.run(bench.runner))
    await asyncio.sleep(0)
    bench.is_paused = False
    async with asyncio.timeout(10):
        await started.wait()
    running.cancel()
    await asyncio.wait({running})


async def test_suspension_is_raised_once_and_the_end_of_the_run_is_none() -> None:
    bench = Bench()
    for _ in range(2):
        bench.pipeline.suspend("volatility", "FS104")
    assert bench.codes == ["FS103"]
    bench.tick(0.0)
    bench.heard(wanted(BUY, 0.001))
    assert await bench.done() == []
    bench.pipeline.resume("operator")
    bench.pipeline.stop()
    assert bench.codes == ["FS103"]


@pytest.mark.parametrize(
    ("reason", "code", "per_symbol"),
    [
        ("G_DAILY_LOSS", "GR020", False),
        ("G_EXPOSURE G_OPEN_SYMBOLS", "GR001", False),
        ("G_SYMBOL_EXPOSURE", "GR010", True),
        ("G_SHORT", "GR040", True),
    ],
)
async def test_refusals_raise_their_guardrail_once_in_ten_minutes(
    reason: str, code: str, per_symbol: bool
) -> None:
    clock = ManualClock()
    bench = Bench(clock=clock)
    bench.trades.refuses = reason
    for symbol in ("005930", "000660", "005930"):
        bench.portfolio.apply_tick(tick(symbol, at=clock.now().timestamp()))
        bench.heard(signal(symbol=symbol, at=clock.now().timestamp()))
        await bench.pipeline.close()
        await asyncio.sleep(0)
    assert bench.codes == [code] * (2 if per_symbol else 1)
    await clock.advance(600)
    bench.heard(signal(at=clock.now().timestamp()))
    await bench.pipeline.close()
    assert bench.codes == [code] * (3 if per_symbol else 2)


async def test_a_contradiction_and_a_missing_price_raise_their_codes() -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.heard(wanted(BUY, 0.001), wanted(SELL, 0.002))
    bench.heard(wanted(BUY, 0.001, symbol="000660"))
    assert await bench.done() == []
    assert sorted(bench.codes) == ["AN010", "GR030"]


async def test_no_cycle_starts_while_its_lane_is_paused() -> None:
    clock = ManualClock()
    bench = Bench(clock=clock)
    bench.is_paused = True
    running = asyncio.create_task(bench.scheduler.run(bench.runner))
    await clock.advance(20)
    assert not bench.pipeline.cycles
    bench.scheduler.start_cycle(bench.runner.key)
    await clock.advance(0)
    assert len(bench.pipeline._tasks) == 1
    running.cancel()
    await bench.pipeline.close()
    await asyncio.wait({running})
    assert bench.codes == []  # the wait for its turn is not a long cycle


async def test_signals_before_the_positions_are_known_are_dropped() -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.is_ready = False
    bench.heard(wanted(BUY, 0.001))
    bench.is_ready = True
    bench.heard(wanted(BUY, 0.002))
    assert await bench.done() == [("005930", BUY, 0.002)]
