"""State of strategies: kept before a signal leaves, restored at the start, checked by its class."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import astuple

from qts.backtest import run_backtest
from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError, Secret, Side, SystemClock, Tick
from qts.pipeline import (
    DecisionJournal,
    IsolatedRunner,
    JournaledStore,
    JournalHeader,
    RunnerHooks,
    StrategyConfig,
    StrategyRunner,
    replay_decisions,
    replay_states,
)
from qts.pipeline.decision_journal import Entry, RestartEntry, StateEntry, StrategyCallEntry
from qts.pipeline.strategy_state import StrategyStates, clear_state, list_states
from qts.risk import RiskLimitsConfig
from qts.strategies import NoParams, Signal, Strategy, View
from qts.strategies.strategy import MAX_STATE_BYTES, decode_state, encode_state
from tests.backtest.tapes import prices, tape
from tests.pipeline.counting import ACCOUNT, Counting
from tests.pipeline.portfolios import NOW, tick, view

KEY = "counting"


def states_of(database: Database, record: Any = None) -> StrategyStates:
    return StrategyStates(database, ACCOUNT, record)


async def stored(database: Database) -> dict[str, Any]:
    return {each.strategy_key: each.state for each in await list_states(database, ACCOUNT)}


async def test_what_waits_for_a_state_runs_after_its_commit(database: Database) -> None:
    states, seen = states_of(database), list[str]()
    task = asyncio.create_task(states.run())
    for count in (1, 2):
        states.keep(KEY, msgspec.msgpack.encode({"calls": count}), [lambda: seen.append("signal")])
    states.keep(KEY, None, [lambda: seen.append("later")])
    assert seen == []  # all three wait
    await states.close()
    assert seen == ["signal", "signal", "later"]
    assert await stored(database) == {KEY: {"calls": 2}}
    states.keep(KEY, None, [lambda: seen.append("at once")])
    assert seen[-1] == "at once"
    task.cancel()


async def test_states_are_kept_once_the_database_is_back(database: Database) -> None:
    states, seen = states_of(database), list[str]()
    failing = asyncio.Event()

    class Broken:
        def transaction(self, **_: Any) -> Any:
            failing.set()
            states._database = database
            raise OperationError("gone")

    states._database = Broken()  # type: ignore[assignment]
    task = asyncio.create_task(states.run())
    states.keep(KEY, msgspec.msgpack.encode({"calls": 1}), [lambda: seen.append("first")])
    await failing.wait()
    states.keep(KEY, msgspec.msgpack.encode({"calls": 2}), [lambda: seen.append("second")])
    await states.close()
    assert seen == ["first", "second"]
    assert await stored(database) == {KEY: {"calls": 2}}
    task.cancel()


async def test_a_state_belongs_to_its_account_and_can_be_cleared(database: Database) -> None:
    states = states_of(database)
    task = asyncio.create_task(states.run())
    states.keep(KEY, msgspec.msgpack.encode({"calls": 1}), [])
    await states.close()
    other = AccountKey("upbit", "counting")
    assert await list_states(database, other) == []
    assert not await clear_state(database, other, KEY)
    assert await clear_state(database, ACCOUNT, KEY)
    assert await stored(database) == {}
    task.cancel()


# --- kills ------------------------------------------------------------------------------------


def killed_run(url: Secret, chance: random.Random) -> tuple[int, int]:
    """Run the counting process until it is killed at random; return its first and last count."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.counting", url.reveal()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    first = int(process.stdout.readline())
    for _ in range(chance.randrange(1, 12)):
        assert process.stdout.readline()
    process.kill()
    rest, _ = process.communicate()
    counts = [int(line) for line in rest.splitlines() if line]
    return first, max([first, *counts])


def no_kill_loses_an_acknowledged_state(url: Secret, kills: int) -> None:
    chance, acknowledged = random.Random(kills), 0  # noqa: S311 - reproducible on purpose
    for _ in range(kills):
        first, last = killed_run(url, chance)
        assert first >= acknowledged
        acknowledged = last
    assert acknowledged > kills


async def test_no_kill_loses_what_was_acknowledged(database_url: Secret) -> None:
    await asyncio.to_thread(no_kill_loses_an_acknowledged_state, database_url, 20)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_thousand_kills_lose_nothing_that_was_acknowledged(database_url: Secret) -> None:
    await asyncio.to_thread(no_kill_loses_an_acknowledged_state, database_url, 1000)


# --- runners ----------------------------------------------------------------------------------


class Bench:
    """A runner whose states are kept when a test says so."""

    def __init__(self, make: Callable[[RunnerHooks], StrategyRunner], record: Any = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.kept: list[bytes | None] = []
        self.waiting: list[Callable[[], object]] = []
        self.got: list[Signal] = []
        self.was_kept = asyncio.Event()
        hooks = RunnerHooks(view, self._wake, self._deliver, self.loop, record, self._keep)
        self.runner = make(hooks)

    def _wake(self, _key: str) -> None:
        self.loop.call_soon_threadsafe(self.runner.run_pending)

    def _deliver(self, _runner: StrategyRunner, found: list[Signal], **_: bool) -> None:
        self.got += found

    def _keep(self, key: str, state: bytes | None, then: Iterable[Callable[[], object]]) -> None:
        assert key == self.runner.key
        self.kept.append(state)
        self.waiting += then
        self.was_kept.set()

    async def tick(self, at: float) -> None:
        self.was_kept.clear()
        self.runner.tick(tick(at=at))
        await self.was_kept.wait()


def lane(hooks: RunnerHooks) -> StrategyRunner:
    return StrategyRunner(Counting(NoParams()), hooks)


async def test_a_signal_waits_for_the_state_of_its_call() -> None:
    bench = Bench(lane)
    for number in range(3):
        await bench.tick(NOW.timestamp() + number)
    assert [msgspec.msgpack.decode(each or b"")["calls"] for each in bench.kept] == [1, 2, 3]
    assert bench.got == []
    for each in bench.waiting:
        each()
    assert [each.reason for each in bench.got] == ["3"]


async def test_the_state_outlives_the_process_of_an_isolated_strategy() -> None:
    restarted, name = asyncio.Event(), f"{Counting.__module__}:Counting"

    def record(entry: Entry) -> None:
        if isinstance(entry, RestartEntry):
            restarted.set()

    bench = Bench(lambda hooks: IsolatedRunner(name, Counting(NoParams()), hooks), record)
    runner = bench.runner
    assert isinstance(runner, IsolatedRunner)
    runner.restore_state(encode_state(KEY, Counting.State(calls=40)))
    task = asyncio.create_task(runner.run())
    await bench.tick(NOW.timestamp())
    pid = runner.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await restarted.wait()
    await bench.tick(NOW.timestamp() + 1)
    task.cancel()
    assert [msgspec.msgpack.decode(each or b"")["calls"] for each in bench.kept] == [41, 42]


class Hoarder(Strategy[NoParams], key="hoarder"):
    class State(msgspec.Struct):
        ticks: list[Any] = []

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002 - as its base
        size = MAX_STATE_BYTES if tick.price == 1 else 1
        self.state.ticks.append("x" * size if tick.price < 3 else object())
        yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)


@pytest.mark.parametrize(
    ("price", "reason"),
    [
        (1.0, "strategy hoarder: its state has 65,549 bytes; at most 65,536"),
        (3.0, "strategy hoarder: its state cannot be stored: Encoding objects of type object"),
    ],
)
async def test_a_state_that_cannot_be_kept_disables_its_strategy(price: float, reason: str) -> None:
    bench = Bench(lambda hooks: StrategyRunner(Hoarder(NoParams()), hooks))
    bench.runner.tick(tick(price=price))
    await bench.runner.disabled.wait()
    assert bench.runner.stopped.startswith(reason)
    assert (bench.kept, bench.got, bench.waiting) == ([], [], [])


def test_the_states_of_a_moment_are_computed_from_the_calls_before_it(tmp_path: Path) -> None:
    path, limits, at = tmp_path / "a.journal", RiskLimitsConfig().exact, NOW.timestamp()
    name = f"{Counting.__module__}:Counting"
    instance = StrategyConfig(source=name, name=KEY)
    with DecisionJournal(path, JournalHeader(NOW, (instance,), limits)) as journal:
        store = JournaledStore(SystemClock(), journal)
        journal.append(StateEntry(KEY, encode_state(KEY, Counting.State(calls=38))))
        for second in range(3):
            store.apply_tick(each := tick(at=at + second))
            seen = (astuple(each),)
            journal.append(StrategyCallEntry(KEY, store.view().version, NOW, seen, (), ()))
    found = [replay_states(path, at + second)[KEY] for second in (0, 1, 2, 99)]
    states = [msgspec.msgpack.decode(each, type=Counting.State) for each in found]
    assert [each.calls for each in states] == [38, 39, 40, 41]
    assert [each.last_at - at for each in states[1:]] == [0, 1, 2]


async def test_a_replay_begins_with_the_restored_state(tmp_path: Path, database: Database) -> None:
    path, limits = tmp_path / "a.journal", RiskLimitsConfig().exact
    name = f"{Counting.__module__}:Counting"
    with DecisionJournal(
        path, JournalHeader(NOW, (StrategyConfig(source=name),), limits)
    ) as journal:
        store = JournaledStore(SystemClock(), journal)
        bench = Bench(lane, journal.append)
        bench.runner._view = store.view
        states = states_of(database, journal.append)
        task = asyncio.create_task(states.run())
        states.keep(KEY, encode_state(KEY, Counting.State(calls=38)), [])
        await states.close()
        await states.load({KEY: bench.runner})
        await bench.tick(NOW.timestamp())
        for each in bench.waiting:
            each()
        task.cancel()
    assert [each.reason for each in bench.got] == ["39"]
    found = replay_decisions(path)
    assert (found.signals, found.differences) == (1, [])
    assert (await stored(database))[KEY]["calls"] == 38  # the replay touched nothing


def test_a_backtest_begins_with_a_state_of_its_own() -> None:
    strategy = Counting.from_params()
    result = run_backtest(strategy, tape(prices([100.0] * 6)))
    assert strategy.state.calls == 6
    assert result.strategies[0].signals == 2


# --- the class changes ------------------------------------------------------------------------


class Before(msgspec.Struct):
    calls: int = 7
    name: str = "a"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([("calls", int, 0)], "has the field 'name', which State has not; expected calls"),
        ([("calls", int, 0), ("names", str, "")], "which State has not; expected calls, names"),
        ([("calls", str, ""), ("name", str, "")], "Expected `str`, got `int` - at `$.calls`"),
        ([("calls", int, 0), ("name", str, ""), ("more", int, 3)], ""),
    ],
)
def test_a_changed_class_is_refused_by_the_name_of_the_field(
    fields: list[tuple[str, type, Any]], error: str
) -> None:
    after = msgspec.defstruct("State", fields)
    data = encode_state("mine", Before())
    if not error:
        assert msgspec.structs.asdict(decode_state("mine", after, data))["more"] == 3
        return
    with pytest.raises(RefusedError) as found:
        decode_state("mine", after, data)
    assert "strategy mine: its stored state" in str(found.value)
    assert error in str(found.value)
    assert "`qts ops state clear mine`" in str(found.value)


def test_a_state_needs_defaults() -> None:
    class Bare(Strategy[NoParams], key="bare"):
        class State(msgspec.Struct):
            calls: int

    with pytest.raises(RefusedError, match=r"strategy bare: State must have a default .* calls"):
        Bare.from_params()
