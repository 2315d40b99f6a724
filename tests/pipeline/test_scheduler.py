"""Signals of a tick: of those heard together one is acted on, and a symbol is free again after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, cast

import pytest

from qts.domain import IntentType, Position, Side, SystemClock, Tick
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
from qts.risk import OrderProposal, RiskLimitsConfig
from qts.strategies import NoParams, Signal, Strategy, View
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

    async def submit(self, proposal: OrderProposal, timeout_s: float = 5.0) -> Execution:  # noqa: ARG002
        self.asked.append(proposal)
        self.was_asked.set()
        await self.may_fill.wait()
        return Execution(proposal, "FILLED", proposal.quantity)


class Bench:
    def __init__(self, *held: Position, **config: Any) -> None:
        clock = SystemClock()
        self.portfolio, self.trades = Portfolio(clock), Trades()
        self.portfolio.load(Decimal(100_000_000), held)
        limits, submitter = RiskLimitsConfig().exact, cast("Any", self.trades)
        self.codes: list[str] = []
        hooks = PipelineHooks(DecisionPolicy, lambda _name, _payload: None, self._trip, None)
        self.pipeline = EtedaPipeline(
            PipelineConfig(**config), self.portfolio, submitter, limits, hooks, clock
        )
        view, loop = self.portfolio.view, asyncio.get_running_loop()
        runner_hooks = RunnerHooks(view, lambda _key: None, self.pipeline.on_signals, loop, None)
        self.runner = StrategyRunner(Buyer(NoParams()), runner_hooks)

    async def _trip(self, code: str, _text: str) -> None:
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

    async def evaluated() -> list[Signal]:
        return [wanted(BUY, 0.001)]

    bench.runner.evaluate = evaluated  # type: ignore[method-assign]
    running = asyncio.create_task(bench.pipeline.run(bench.runner))
    await bench.trades.was_asked.wait()
    bench.pipeline.suspend("stopping", "test")
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
