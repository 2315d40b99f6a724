"""Strategies: parameters are typed, and one that misbehaves harms only itself."""

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
from qts.pipeline import runner as room
from qts.strategies import Signal, Strategy, View
from tests.pipeline.portfolios import signal, tick, view


class Params(msgspec.Struct, frozen=True):
    length: int = 14
    share: float = 0.5


class Counting(Strategy[Params], key="counting"):
    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.heard: list[Tick] = []

    def wants(self, symbol: str) -> bool:
        return symbol == "005930"

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002
        self.heard.append(tick)
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
    ("params", "said"),
    [({"lenght": 3}, "no parameter 'lenght'; it has length, share"), ({"length": "x"}, "length")],
)
def test_wrong_parameter_is_refused_by_name(params: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        Counting.from_params(params)


class Bench:
    def __init__(self, strategy: Strategy[Any]) -> None:
        self.woken = 0
        self.got: list[Signal] = []
        loop = asyncio.get_running_loop()
        self.runner = StrategyRunner(
            strategy, RunnerHooks(view, self._wake, self._deliver, loop, None)
        )

    def _deliver(self, _runner: StrategyRunner, found: list[Signal]) -> None:
        self.got += found

    def _wake(self, key: str) -> None:
        assert key == self.runner.key
        self.woken += 1


async def test_ticks_become_signals_in_order() -> None:
    strategy = Counting(Params())
    bench = Bench(strategy)
    for number, price in enumerate((9_000, 10_001, 10_002)):
        bench.runner.tick(tick(price=price, at=number + 1.0))
    bench.runner.tick(tick("000660", 99_999))
    assert bench.woken == 3
    bench.runner.run_pending()
    await asyncio.sleep(0)
    assert [each.price for each in strategy.heard] == [9_000, 10_001, 10_002]
    assert [each.at for each in bench.got] == [2, 3]


async def test_tick_that_was_overtaken_is_left_out() -> None:
    strategy = Counting(Params())
    bench = Bench(strategy)
    for at in (1.0, 3.0, 2.0, 4.0):
        bench.runner.tick(tick(price=at, at=at))
    bench.runner.run_pending()
    assert [each.at for each in strategy.heard] == [1, 3, 4]


async def test_clock_that_is_set_back_does_not_silence_the_market() -> None:
    strategy = Counting(Params())
    bench = Bench(strategy)
    for at in (7200.0, 3600.0, 3601.0):
        bench.runner.tick(tick(price=at, at=at))
    bench.runner.run_pending()
    assert [each.at for each in strategy.heard] == [7200, 3600, 3601]


async def test_evaluation_is_answered_by_the_lane() -> None:
    bench = Bench(Counting(Params()))
    asked = asyncio.create_task(bench.runner.evaluate())
    await asyncio.sleep(0)
    await asyncio.to_thread(bench.runner.run_pending)
    assert [each.symbol for each in await asked] == ["000660"]


async def test_strategy_that_raises_goes_on_and_is_given_up_in_the_end() -> None:
    bench = Bench(Counting(Params()))
    for price in (-1, 10_001, -1):
        bench.runner.tick(tick(price=price))
    bench.runner.run_pending()
    await asyncio.sleep(0)
    assert (bench.runner.errors, len(bench.got)) == (2, 1)
    assert not bench.runner.stopped
    for _ in range(room.MAX_ERRORS_IN_A_ROW):
        bench.runner.tick(tick(price=-1))
    bench.runner.run_pending()
    assert "in a row" in bench.runner.stopped
    assert await bench.runner.evaluate() == []


async def test_paused_lane_is_no_strategy_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CALL_TIMEOUT_S", 0.05)
    bench = Bench(Counting(Params()))
    assert await bench.runner.evaluate() == []  # nobody works in its lane
    assert not bench.runner.stopped
    asked = asyncio.create_task(bench.runner.evaluate())
    await asyncio.sleep(0)
    bench.runner.run_pending()
    assert len(await asked) == 1
    assert bench.runner.signals == 1  # nobody waits for what was asked before


class Slow(Strategy[Params], key="slow"):
    """Waits in every tick until it may go on, and counts who is in it."""

    waits_in_evaluate = False

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.inside, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.heard: list[float] = []

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002
        self.inside.release()
        self.go_on.acquire()
        self.heard.append(tick.price)
        return ()

    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        if self.waits_in_evaluate:
            self.inside.release()
            self.go_on.acquire()
        return ()


@pytest.mark.parametrize("waits_in_evaluate", [True, False])
async def test_strategy_that_never_returns_is_given_up(
    monkeypatch: pytest.MonkeyPatch, waits_in_evaluate: bool
) -> None:
    monkeypatch.setattr(room, "CALL_TIMEOUT_S", 0.2)
    strategy = Slow(Params())
    strategy.waits_in_evaluate = waits_in_evaluate
    bench = Bench(strategy)
    if not waits_in_evaluate:
        bench.runner.tick(tick())
        at_work = asyncio.create_task(asyncio.to_thread(bench.runner.run_pending))
        await asyncio.to_thread(strategy.inside.acquire)
    asked = asyncio.create_task(bench.runner.evaluate())
    await asyncio.sleep(0)
    if waits_in_evaluate:
        at_work = asyncio.create_task(asyncio.to_thread(bench.runner.run_pending))
    try:
        assert await asked == []
        assert "did not return within" in bench.runner.stopped
    finally:
        strategy.go_on.release()
        await at_work


async def test_time_to_answer_begins_when_the_lane_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(room, "CALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(room, "monotonic", lambda: now_s)
    strategy = Slow(Params())
    strategy.waits_in_evaluate = True
    bench = Bench(strategy)
    asked = asyncio.create_task(bench.runner.evaluate())
    await asyncio.sleep(0)
    now_s = 0.04  # the lane was paused
    at_work = asyncio.create_task(asyncio.to_thread(bench.runner.run_pending))
    await asyncio.to_thread(strategy.inside.acquire)
    now_s = 0.08
    await asyncio.wait({asked}, timeout=0.1)
    assert not asked.done()
    now_s = 0.1
    try:
        assert await asked == []
        assert "did not return within" in bench.runner.stopped
    finally:
        strategy.go_on.release()
        await at_work


async def test_strategy_is_never_in_two_workers_at_once_and_nothing_is_missed() -> None:
    strategy = Slow(Params())
    bench = Bench(strategy)
    bench.runner.tick(tick(price=1))
    first = asyncio.create_task(asyncio.to_thread(bench.runner.run_pending))
    await asyncio.to_thread(strategy.inside.acquire)
    asked = asyncio.create_task(bench.runner.evaluate())
    await asyncio.sleep(0)
    woken = bench.woken
    for _ in range(5):
        await asyncio.to_thread(
            bench.runner.run_pending
        )  # another worker: it has nothing to do here
    assert not strategy.inside.acquire(blocking=False)
    strategy.go_on.release()
    await first
    assert (strategy.heard, await asked) == ([1], [])
    assert bench.woken == woken + 1


async def test_strategy_that_never_returns_holds_one_worker_of_its_lane() -> None:
    engine = EventEngine(EventsConfig(pool_workers=2), Catalogue(), SystemClock())
    heard = asyncio.Event()

    def wake(key: str) -> None:
        payload = p.StrategyEvaluate(strategy_type=key)
        engine.try_publish(engine.new_event("STRATEGY_EVALUATE", payload, "test"))

    loop = asyncio.get_running_loop()
    joints = RunnerHooks(view, wake, lambda _, _found: heard.set(), loop, None)
    slow, other = Slow(Params()), StrategyRunner(Counting(Params()), joints)
    runners = {"slow": StrategyRunner(slow, joints), "counting": other}
    engine.on("STRATEGY_EVALUATE", lambda event: runners[event.payload.strategy_type].run_pending())
    engine.start()
    try:
        runners["slow"].tick(tick(price=1))
        await asyncio.to_thread(slow.inside.acquire)
        runners["slow"].tick(tick(price=2))
        other.tick(tick(price=10_001))
        async with asyncio.timeout(10):
            await heard.wait()
    finally:
        slow.go_on.release(2)
        await asyncio.to_thread(engine.stop)
    assert slow.heard == [1, 2]


async def test_strategy_that_lags_behind_loses_its_oldest_ticks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "INBOX_CAPACITY", 3)
    strategy = Counting(Params())
    bench = Bench(strategy)
    for price in range(1, 6):
        bench.runner.tick(tick(price=price))
    bench.runner.run_pending()
    assert [each.price for each in strategy.heard] == [3, 4, 5]
    assert bench.runner.dropped == 2
