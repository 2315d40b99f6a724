"""A strategy in a process of its own decides as it would in its lane, and harms only itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal as signals
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from qts.domain import BookLevel, OrderBook, Tick
from qts.pipeline import IsolatedRunner, RunnerHooks, StrategyRunner
from qts.pipeline import isolated_runner as room
from qts.pipeline import runner as lane
from qts.pipeline.decision_journal import Entry, ParamsEntry, RestartEntry, StrategyCallEntry
from qts.pipeline.strategy_call import LENGTH
from qts.strategies import Instruction, Signal, Strategy, View
from tests.embedded.clients import alive, state_of, until
from tests.pipeline.portfolios import NOW, signal, tick, view

DEADLINE_S = 60.0
HERE = __name__


class Params(msgspec.Struct, frozen=True):
    above: float = 10_000.0


class Watcher(Strategy[Params], key="watcher"):
    """Says what it saw: every answer is told in the reason of a signal."""

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.count = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.count += 1
        if tick.price == 13:
            raise ValueError("unlucky")
        if tick.price > self.params.above:
            held = view.quantity(tick.symbol)
            yield signal(symbol=tick.symbol, at=tick.at, reason=f"{self.count} {held} {tick.price}")

    def evaluate(self, view: View) -> Iterable[Signal]:
        seen = sorted((each.symbol, each.price) for each in view.ticks.values())
        book = view.book("005930")
        best = book.asks[0].price if book else None
        yield signal(reason=f"{self.count} {seen} {view.equity} {view.account.cash} {best}")


class Hanging(Watcher, key="hanging"):
    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        while True:
            pass


class Dying(Watcher, key="dying"):
    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        os._exit(3)


class Stuck(Watcher, key="stuck"):
    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002
        while True:
            pass


class Odd(Watcher, key="odd"):
    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        nonsense: Any = 7
        return [nonsense, signal()]


class Babbling(Watcher, key="babbling"):
    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        os.write(int(sys.argv[1]), LENGTH.pack(3) + b"abc")  # over the line that is not its own
        return ()


class Unmade(Watcher, key="unmade"):
    def __init__(self, params: Params) -> None:
        super().__init__(params)
        if sys.argv[0].endswith("process_main.py"):
            raise ValueError("there is no such model")


class Bench:
    """A lane of its own: whoever is woken works at once, on another thread."""

    def __init__(self, kind: type[Watcher], look: Callable[[], View] = view) -> None:
        self.got: list[Any] = []
        self.notes: list[Entry] = []
        self._sent = 0
        name, self._loop = f"{HERE}:{kind.__name__}", asyncio.get_running_loop()
        hooks = RunnerHooks(look, self._wake, self._heard, self._loop, self.notes.append)
        self.runner = IsolatedRunner(name, kind(Params()), hooks)

    def _wake(self, _key: str) -> None:
        self._loop.run_in_executor(None, self.runner.run_pending)

    def _heard(self, _runner: StrategyRunner, found: list[Instruction]) -> None:
        self.got += found

    async def heard(self, count: int) -> None:
        """Until so many more ticks have been answered."""
        self._sent += count
        await self.until(
            lambda: (
                sum(len(e.ticks) for e in self.notes if isinstance(e, StrategyCallEntry))
                >= self._sent
            )
        )

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110 - the runner tells nobody
                await asyncio.sleep(0.002)


@asynccontextmanager
async def running(kind: type[Watcher], look: Callable[[], View] = view) -> AsyncIterator[Bench]:
    bench = Bench(kind, look)
    task = asyncio.create_task(bench.runner.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert bench.runner.pid is None


async def test_it_decides_as_in_its_lane() -> None:
    chance = random.Random(20261115)  # noqa: S311 - a seed, no secret
    loop = asyncio.get_running_loop()
    here = StrategyRunner(
        Watcher(Params()), RunnerHooks(view, lambda _: None, lambda *_: None, loop, None)
    )
    world: dict[str, Tick] = {}
    books: dict[str, OrderBook] = {}

    def look() -> View:
        seen = view(*world.values(), held={"005930": (3, 9_000)})
        return msgspec.structs.replace(seen, books=books)

    async with running(Watcher, look) as bench:
        expected: list[Instruction] = []
        for number in range(40):
            if number % 7 == 3:
                ask = BookLevel(10_000.0 + number, 5.0)
                books["005930"] = OrderBook("005930", (), (ask,), NOW.timestamp())
            symbols = chance.choices(["005930", "000660", "035720"], k=chance.randrange(6))
            ticks = [tick(each, chance.choice([13.0, 9_999.0, 10_001.0])) for each in symbols]
            world.update((each.symbol, each) for each in ticks)
            for each in ticks:
                bench.runner.tick(each)
                expected += here._call(here.strategy.on_tick, each, look())
            await bench.heard(sum(1 for _ in ticks))
            assert await bench.runner.evaluate() == here._call(here.strategy.evaluate, look())
    assert bench.got == expected
    assert bench.runner.errors == here.errors > 0


async def test_other_parameters_hold_from_the_next_turn() -> None:
    async with running(Watcher) as bench:
        bench.runner.tick(tick(price=10_001.0))
        await bench.heard(1)
        bench.runner.set_params(Params(above=20_000.0))
        for price in (10_001.0, 20_001.0):
            bench.runner.tick(tick(price=price))
        await bench.heard(2)
    assert [each.reason for each in bench.got] == ["1 0 10001.0", "3 0 20001.0"]
    assert ParamsEntry("watcher", {"above": 20_000.0}) in bench.notes


async def test_it_begins_anew_after_a_kill() -> None:
    async with running(Watcher) as bench:
        for price in (10_001.0, 10_002.0):
            bench.runner.tick(tick(price=price))
        await bench.heard(2)
        first = bench.runner.pid
        assert first
        os.kill(first, signals.SIGKILL)
        assert until(lambda: not alive(first))
        await bench.until(lambda: bench.runner.pid not in (first, None))
        bench.runner.tick(tick(price=10_003.0))
        await bench.heard(1)
    assert bench.got[-1].reason == "1 0 10003.0"  # what it had counted is gone
    assert RestartEntry("watcher") in bench.notes
    assert bench.runner.errors == 1
    assert not bench.runner.stopped


@pytest.mark.parametrize(
    ("kind", "how"), [(Dying, "it ended with 3"), (Babbling, "it was killed by signal 9")]
)
async def test_one_that_ends_time_after_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch, kind: type[Watcher], how: str
) -> None:
    monkeypatch.setattr(room, "MAX_ENDS_IN_A_ROW", 2)
    monkeypatch.setattr(room, "RESTART_BACKOFF_S", 0.0)
    async with running(kind) as bench:
        for _ in range(4):
            assert await bench.runner.evaluate() == []
    assert bench.runner.stopped == f"its process ended 3 times in a row: {how}"


async def test_one_that_cannot_be_started_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RESTART_BACKOFF_S", 0.0)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with running(Watcher) as bench:
        assert await bench.runner.evaluate() == []
    assert "No such file" in bench.runner.stopped


async def test_one_that_never_returns_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(Hanging) as bench:
        bench.runner.tick(tick(price=10_001.0))
        await bench.heard(1)
        process = bench.runner.pid
        assert process
        monkeypatch.setattr(lane, "CALL_TIMEOUT_S", 0.2)
        assert await bench.runner.evaluate() == []
        assert "did not return within" in bench.runner.stopped
        assert await asyncio.to_thread(until, lambda: not alive(process), DEADLINE_S)
        assert await bench.runner.evaluate() == []


async def test_question_behind_a_turn_that_is_lost_is_answered_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "RESTART_BACKOFF_S", 3600.0)  # no other process comes up meanwhile
    monkeypatch.setattr(lane, "CALL_TIMEOUT_S", 3600.0)
    async with running(Stuck) as bench:
        bench.runner.tick(tick())
        await bench.until(lambda: bench.runner._in_flight is not None)
        asked = asyncio.create_task(bench.runner.evaluate())
        await bench.until(lambda: len(bench.runner._evaluations) == 1)
        process = bench.runner.pid
        assert process
        os.kill(process, signals.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            assert await asked == []
        assert not bench.runner.stopped


async def test_paused_lane_is_no_process_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(Watcher) as bench:
        assert len(await bench.runner.evaluate()) == 1
        # The worker of the first call may still take what is pending.
        await bench.until(lambda: not bench.runner._running.locked())
        with monkeypatch.context() as paused:
            paused.setattr(lane, "CALL_TIMEOUT_S", 0.05)
            paused.setattr(bench.runner, "_wake", lambda _key: None)
            assert await bench.runner.evaluate() == []
        assert not bench.runner.stopped
        assert len(await bench.runner.evaluate()) == 1
    assert bench.runner.signals == 2


async def test_it_holds_still_and_goes_on() -> None:
    async with running(Hanging) as bench:
        asked = asyncio.create_task(bench.runner.evaluate())
        await bench.until(lambda: bench.runner._in_flight is not None)
        process = bench.runner.pid
        assert process
        bench.runner.pause()
        await bench.until(lambda: state_of(process) == "T")
        bench.runner.resume()
        await bench.until(lambda: state_of(process) == "R")
        bench.runner.pause()
    assert not alive(process)  # also when it ends while it is held
    asked.cancel()


async def test_one_that_cannot_be_made_is_given_up_with_its_reason() -> None:
    async with running(Unmade) as bench:
        assert await bench.runner.evaluate() == []
    assert bench.runner.stopped == "ValueError: there is no such model"


async def test_what_is_no_signal_is_an_error_and_the_others_pass() -> None:
    async with running(Odd) as bench:
        assert await bench.runner.evaluate() == [signal()]
    assert bench.runner.errors == 1


async def test_ticks_that_never_end_leave_room_for_an_evaluation() -> None:
    async with running(Watcher) as bench:
        asked = asyncio.create_task(bench.runner.evaluate())
        while not asked.done():
            bench.runner.tick(tick(price=10_001.0))
            await asyncio.sleep(0)
        assert len(await asked) == 1


ORPHAN = """
import asyncio, sys
from tests.pipeline.test_isolated_runner import Hanging, running
async def main():
    async with running(Hanging) as bench:
        asked = asyncio.create_task(bench.runner.evaluate())
        while bench.runner._in_flight is None:
            await asyncio.sleep(0.01)
        print(bench.runner.pid, flush=True)
        await asked
asyncio.run(main())
"""


def test_it_ends_with_the_run_that_was_killed_even_while_it_computes() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        process = int(run.stdout.readline())
        assert alive(process)
        run.kill()
    assert until(lambda: not alive(process), DEADLINE_S)
