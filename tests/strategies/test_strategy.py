"""Strategy parameters, and the runner's handling of faulty strategies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from qts.domain import RefusedError, SystemClock, Tick
from qts.events import Catalogue, EventEngine, EventsConfig
from qts.events import payloads as p
from qts.pipeline import RunnerHooks, StrategyRunner
from qts.pipeline import runner as runner_module
from qts.strategies import Signal, Strategy, View
from tests.pipeline.portfolios import signal, tick, view


class Params(msgspec.Struct, frozen=True):
    length: int = 14
    share: float = 0.5


class Counting(Strategy[Params], key="counting"):
    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.ticks: list[Tick] = []

    def wants(self, symbol: str) -> bool:
        return symbol == "005930"

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002
        self.ticks.append(tick)
        if tick.price < 0:
            raise ValueError(f"{tick.symbol} at {tick.price}")
        return [signal(at=tick.at)] if tick.price > 10_000 else []

    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        yield signal(symbol="000660")


def test_parameters_are_read_from_texts_and_have_defaults() -> None:
    made = Counting.from_params({"length": "20"})
    assert made.params == Params(length=20, share=0.5)
    assert made.key == "counting"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lenght": 3}, "no parameter 'lenght'; expected length, share; did you mean length"),
        ({"length": "x"}, "length"),
    ],
)
def test_wrong_parameter_is_refused_by_name(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        Counting.from_params(params)


class RunnerHarness:
    def __init__(self, strategy: Strategy[Any]) -> None:
        self.woken = 0
        self.signals: list[Signal] = []
        loop = asyncio.get_running_loop()
        self.runner = StrategyRunner(
            strategy, RunnerHooks(view, self._wake, self._deliver, loop, None)
        )

    def _deliver(self, _runner: StrategyRunner, found: list[Signal]) -> None:
        self.signals += found

    def _wake(self, key: str) -> None:
        assert key == self.runner.key
        self.woken += 1


async def test_ticks_become_signals_in_order() -> None:
    strategy = Counting(Params())
    harness = RunnerHarness(strategy)
    for number, price in enumerate((9_000, 10_001, 10_002)):
        harness.runner.tick(tick(price=price, at=number + 1.0))
    harness.runner.tick(tick("000660", 99_999))
    assert harness.woken == 3
    harness.runner.run_pending()
    await asyncio.sleep(0)
    assert [each.price for each in strategy.ticks] == [9_000, 10_001, 10_002]
    assert [each.at for each in harness.signals] == [2, 3]


async def test_late_tick_is_dropped() -> None:
    strategy = Counting(Params())
    harness = RunnerHarness(strategy)
    for at in (1.0, 3.0, 2.0, 4.0):
        harness.runner.tick(tick(price=at, at=at))
    harness.runner.run_pending()
    assert [each.at for each in strategy.ticks] == [1, 3, 4]


async def test_ticks_arrive_after_the_clock_was_set_back() -> None:
    strategy = Counting(Params())
    harness = RunnerHarness(strategy)
    for at in (7200.0, 3600.0, 3601.0):
        harness.runner.tick(tick(price=at, at=at))
    harness.runner.run_pending()
    assert [each.at for each in strategy.ticks] == [7200, 3600, 3601]


async def test_evaluation_runs_in_the_lane() -> None:
    harness = RunnerHarness(Counting(Params()))
    evaluation = asyncio.create_task(harness.runner.evaluate())
    await asyncio.sleep(0)
    await asyncio.to_thread(harness.runner.run_pending)
    assert [each.symbol for each in await evaluation] == ["000660"]


async def test_strategy_that_raises_continues_and_is_disabled_in_the_end() -> None:
    harness = RunnerHarness(Counting(Params()))
    for price in (-1, 10_001, -1):
        harness.runner.tick(tick(price=price))
    harness.runner.run_pending()
    await asyncio.sleep(0)
    assert (harness.runner.errors, len(harness.signals)) == (2, 1)
    assert not harness.runner.stopped
    for _ in range(runner_module.MAX_ERRORS_IN_A_ROW):
        harness.runner.tick(tick(price=-1))
    harness.runner.run_pending()
    assert "in a row" in harness.runner.stopped
    assert await harness.runner.evaluate() == []


async def test_paused_lane_does_not_count_as_a_hanging_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_module, "CALL_TIMEOUT_S", 0.05)
    harness = RunnerHarness(Counting(Params()))
    assert await harness.runner.evaluate() == []  # no worker runs in its lane
    assert not harness.runner.stopped
    evaluation = asyncio.create_task(harness.runner.evaluate())
    await asyncio.sleep(0)
    harness.runner.run_pending()
    assert len(await evaluation) == 1
    assert harness.runner.signals == 1  # the first evaluation was cancelled


class Slow(Strategy[Params], key="slow"):
    """Blocks in every tick until released; `inside` counts the calls."""

    waits_in_evaluate = False

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.inside, self.resume = threading.Semaphore(0), threading.Semaphore(0)
        self.ticks: list[float] = []

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002
        self.inside.release()
        self.resume.acquire()
        self.ticks.append(tick.price)
        return ()

    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        if self.waits_in_evaluate:
            self.inside.release()
            self.resume.acquire()
        return ()


@pytest.mark.parametrize("waits_in_evaluate", [True, False])
async def test_strategy_that_never_returns_is_disabled(
    monkeypatch: pytest.MonkeyPatch, waits_in_evaluate: bool
) -> None:
    monkeypatch.setattr(runner_module, "CALL_TIMEOUT_S", 0.2)
    strategy = Slow(Params())
    strategy.waits_in_evaluate = waits_in_evaluate
    harness = RunnerHarness(strategy)
    if not waits_in_evaluate:
        harness.runner.tick(tick())
        running = asyncio.create_task(asyncio.to_thread(harness.runner.run_pending))
        await asyncio.to_thread(strategy.inside.acquire)
    evaluation = asyncio.create_task(harness.runner.evaluate())
    await asyncio.sleep(0)
    if waits_in_evaluate:
        running = asyncio.create_task(asyncio.to_thread(harness.runner.run_pending))
    try:
        assert await evaluation == []
        assert "did not return within" in harness.runner.stopped
    finally:
        strategy.resume.release()
        await running


async def test_call_timeout_starts_when_the_lane_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(runner_module, "CALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(runner_module, "monotonic", lambda: now_s)
    strategy = Slow(Params())
    strategy.waits_in_evaluate = True
    harness = RunnerHarness(strategy)
    evaluation = asyncio.create_task(harness.runner.evaluate())
    await asyncio.sleep(0)
    now_s = 0.04  # the lane was paused
    running = asyncio.create_task(asyncio.to_thread(harness.runner.run_pending))
    await asyncio.to_thread(strategy.inside.acquire)
    now_s = 0.08
    await asyncio.wait({evaluation}, timeout=0.1)
    assert not evaluation.done()
    now_s = 0.1
    try:
        assert await evaluation == []
        assert "did not return within" in harness.runner.stopped
    finally:
        strategy.resume.release()
        await running


async def test_strategy_runs_in_one_worker_at_a_time_and_misses_nothing() -> None:
    strategy = Slow(Params())
    harness = RunnerHarness(strategy)
    harness.runner.tick(tick(price=1))
    first = asyncio.create_task(asyncio.to_thread(harness.runner.run_pending))
    await asyncio.to_thread(strategy.inside.acquire)
    evaluation = asyncio.create_task(harness.runner.evaluate())
    await asyncio.sleep(0)
    woken = harness.woken
    for _ in range(5):
        await asyncio.to_thread(harness.runner.run_pending)  # another worker returns at once
    assert not strategy.inside.acquire(blocking=False)
    strategy.resume.release()
    await first
    assert (strategy.ticks, await evaluation) == ([1], [])
    assert harness.woken == woken + 1


async def test_strategy_that_never_returns_occupies_one_worker() -> None:
    engine = EventEngine(EventsConfig(pool_workers=2), Catalogue(), SystemClock())
    delivered = asyncio.Event()

    def wake(key: str) -> None:
        payload = p.StrategyEvaluate(strategy_type=key)
        engine.try_publish(engine.new_event("STRATEGY_EVALUATE", payload, "test"))

    loop = asyncio.get_running_loop()
    hooks = RunnerHooks(view, wake, lambda _, _found: delivered.set(), loop, None)
    slow, other = Slow(Params()), StrategyRunner(Counting(Params()), hooks)
    runners = {"slow": StrategyRunner(slow, hooks), "counting": other}
    engine.on("STRATEGY_EVALUATE", lambda event: runners[event.payload.strategy_type].run_pending())
    engine.start()
    try:
        runners["slow"].tick(tick(price=1))
        await asyncio.to_thread(slow.inside.acquire)
        runners["slow"].tick(tick(price=2))
        other.tick(tick(price=10_001))
        async with asyncio.timeout(10):
            await delivered.wait()
        slow.resume.release()
        await asyncio.to_thread(slow.inside.acquire)  # with the second tick
    finally:
        slow.resume.release(2)
        await asyncio.to_thread(engine.stop)
    assert slow.ticks == [1, 2]


async def test_strategy_that_lags_behind_loses_its_oldest_ticks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qts.pipeline.runner_hooks.INBOX_CAPACITY", 3)
    strategy = Counting(Params())
    harness = RunnerHarness(strategy)
    for price in range(1, 6):
        harness.runner.tick(tick(price=price))
    harness.runner.run_pending()
    assert [each.price for each in strategy.ticks] == [3, 4, 5]
    assert harness.runner.dropped == 2
