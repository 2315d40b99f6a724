"""A mistake of a strategy costs that strategy alone, in its lane, isolated and in a backtest."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from qts.backtest import Tape, run_backtest
from qts.domain import SystemClock
from qts.pipeline import (
    MAX_ERRORS_IN_A_ROW,
    DecisionJournal,
    IsolatedRunner,
    JournaledStore,
    JournalHeader,
    Portfolio,
    RunnerHooks,
    StrategyConfig,
    StrategyRunner,
    replay_decisions,
)
from qts.pipeline import runner as runner_module
from qts.pipeline.strategy_call import BAD_SIGNAL, RAISED, call_strategy
from qts.risk import RiskLimitsConfig
from qts.strategies import NoParams, Signal, Strategy
from qts.telemetry.logs import take_suppressed
from tests.instruments import LISTED
from tests.pipeline import faulty
from tests.pipeline.portfolios import NOW, signal, tick, view
from tests.pipeline.test_scheduler import Bench

DEADLINE_S = 60.0


def line_of(method: Callable[..., Any], words: str) -> int:
    lines, first = inspect.getsourcelines(method)
    return first + next(n for n, line in enumerate(lines) if words in line)


@pytest.mark.parametrize(
    ("kind", "event", "error", "signals", "at"),
    [
        (faulty.Text, BAD_SIGNAL, "returned 'BUY'; expected a list of signals", 0, "def on_tick"),
        (faulty.Single, BAD_SIGNAL, "returned Signal(symbol='005930'", 0, "def on_tick"),
        (faulty.Number, BAD_SIGNAL, "returned 7; expected", 0, "def on_tick"),
        (faulty.Mixed, BAD_SIGNAL, "returned {", 1, "yield {"),
        (faulty.Listed, BAD_SIGNAL, "returned None among its signals", 1, "def on_tick"),
        (faulty.NotANumber, RAISED, "Signal.quantity: expected a number", 0, "quantity=float"),
        (faulty.Leaving, RAISED, "SystemExit('that is enough')", 0, "sys.exit"),
        (faulty.Unprintable, BAD_SIGNAL, "returned <Unprintable instance", 0, "def on_tick"),
    ],
)
def test_mistake_is_described_with_its_line(
    kind: type[Strategy[Any]], event: str, error: str, signals: int, at: str
) -> None:
    found = call_strategy(kind(NoParams()).on_tick, tick(), view())
    assert len(found.instructions) == signals
    assert found.error is not None
    assert found.error.event == event
    assert error in found.error.error
    assert found.error.where == f"faulty.py:{line_of(kind.on_tick, at)} in on_tick"


def test_line_is_the_innermost_of_the_strategys_own_file() -> None:
    found = call_strategy(faulty.Raising(NoParams()).on_tick, tick(), view()).error
    assert found is not None
    line = line_of(faulty.Raising.divide, "/ 0")
    assert (
        str(found) == f"ZeroDivisionError('float division by zero') at faulty.py:{line} in divide"
    )


@pytest.mark.parametrize("nothing", [None, (), [], iter(())])
def test_no_signals_are_no_mistake(nothing: Any) -> None:
    instructions, error = call_strategy(lambda: nothing)
    assert (list(instructions), error) == ([], None)


class Lanes:
    """Runners side by side, on one portfolio and one pipeline."""

    def __init__(self, *kinds: type[Strategy[Any]]) -> None:
        self.bench = Bench()
        loop, pipeline = asyncio.get_running_loop(), self.bench.pipeline
        self.delivered: dict[str, list[Signal]] = {}

        def deliver(runner: StrategyRunner, found: list[Signal]) -> None:
            self.delivered.setdefault(runner.key, []).extend(found)
            pipeline.on_signals(runner, found)

        hooks = RunnerHooks(self.bench.portfolio.view, lambda _key: None, deliver, loop, None)
        self.runners = [StrategyRunner(kind(NoParams()), hooks) for kind in kinds]

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            for runner in self.runners:
                runner.tick(tick())
                runner.run_pending()
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "kind",
    [faulty.Text, faulty.Number, faulty.NotANumber, faulty.Raising, faulty.Leaving, faulty.Choosy],
)
async def test_faulty_strategy_is_disabled_and_the_other_trades_on(
    kind: type[Strategy[Any]],
) -> None:
    lanes = Lanes(kind, faulty.Healthy)
    bad, good = lanes.runners
    await lanes.tick(MAX_ERRORS_IN_A_ROW - 1)
    assert (bad.errors, bad.stopped) == (MAX_ERRORS_IN_A_ROW - 1, "")
    await lanes.tick(5)
    assert bad.errors == MAX_ERRORS_IN_A_ROW
    assert bad.stopped.startswith(f"{MAX_ERRORS_IN_A_ROW} errors in a row: ")
    assert "faulty.py:" in bad.stopped
    assert list(lanes.delivered) == ["healthy"]
    assert len(lanes.delivered["healthy"]) == MAX_ERRORS_IN_A_ROW + 4
    assert (good.errors, good.stopped) == (0, "")
    await lanes.bench.done()
    assert lanes.bench.codes in ([], ["AN010"])  # the portfolio of this test has no price


async def test_good_signals_pass_beside_bad_ones_until_it_is_disabled() -> None:
    lanes = Lanes(faulty.Mixed)
    await lanes.tick(MAX_ERRORS_IN_A_ROW + 5)
    assert len(lanes.delivered["mixed"]) == MAX_ERRORS_IN_A_ROW
    assert "returned {" in lanes.runners[0].stopped
    await lanes.bench.done()
    assert lanes.bench.codes in ([], ["AN010"])  # the portfolio of this test has no price


async def test_parameters_that_a_strategy_refuses_are_its_error() -> None:
    lanes = Lanes(faulty.Rigid)
    lanes.runners[0].set_params(NoParams())
    await lanes.tick(2)
    assert lanes.runners[0].errors == 1
    assert len(lanes.delivered["rigid"]) == 2


async def test_log_line_names_the_line_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    take_suppressed()
    monkeypatch.setattr(runner_module, "log", log := CapturingLogger())
    lanes = Lanes(faulty.Raising)
    await lanes.tick(MAX_ERRORS_IN_A_ROW)
    raised, disabled = (call.kwargs | {"event": call.args[0]} for call in log.calls)
    line = line_of(faulty.Raising.divide, "/ 0")
    assert raised == {
        "event": "strategy raised",
        "strategy": "raising",
        "error": "ZeroDivisionError('float division by zero')",
        "where": f"faulty.py:{line} in divide",
        "suppressed": 0,
    }
    assert disabled["event"] == "strategy disabled"
    assert take_suppressed() == {"strategy raised raising": MAX_ERRORS_IN_A_ROW - 1}


async def test_isolated_strategy_is_disabled_with_file_and_line() -> None:
    delivered: list[Signal] = []
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake(_key: str) -> None:
        loop.run_in_executor(None, runner.run_pending)

    hooks = RunnerHooks(view, wake, lambda _runner, found: delivered.extend(found), loop, None)
    name = f"{faulty.__name__}:Mixed"
    runner = IsolatedRunner(name, faulty.Mixed(NoParams()), hooks)
    task = asyncio.create_task(runner.run())
    task.add_done_callback(lambda _task: ended.set())
    for _ in range(MAX_ERRORS_IN_A_ROW):
        runner.tick(tick())
    async with asyncio.timeout(DEADLINE_S):
        await ended.wait()  # a disabled strategy has no process
    line = line_of(faulty.Mixed.on_tick, "yield {")
    assert runner.stopped.endswith(f"at faulty.py:{line} in on_tick")
    assert runner.errors == MAX_ERRORS_IN_A_ROW
    assert delivered == [signal()] * MAX_ERRORS_IN_A_ROW


async def test_journal_of_a_faulty_strategy_is_replayed_equally(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    strategies = tuple(
        StrategyConfig(source=f"{faulty.__name__}:{name}") for name in ("Mixed", "Text")
    )
    header = JournalHeader(NOW, strategies, RiskLimitsConfig().exact)
    with DecisionJournal(path, header) as journal:
        portfolio = Portfolio(SystemClock(), LISTED, JournaledStore(SystemClock(), journal))
        loop = asyncio.get_running_loop()
        hooks = RunnerHooks(
            portfolio.view, lambda _key: None, lambda *_: None, loop, journal.append
        )
        for kind in (faulty.Mixed, faulty.Text):
            runner = StrategyRunner(kind(NoParams()), hooks)
            for _ in range(3):
                runner.tick(tick())
                runner.run_pending()
    found = replay_decisions(path)
    assert (found.calls, found.signals, found.different) == (6, 3, 0)


@pytest.mark.parametrize(
    "kind", [faulty.Text, faulty.Mixed, faulty.NotANumber, faulty.Raising, faulty.Choosy]
)
async def test_backtest_counts_and_disables_as_a_run_does(kind: type[Strategy[Any]]) -> None:
    lanes = Lanes(kind)
    await lanes.tick(30)
    ticks = [tick(at=NOW.timestamp() + number) for number in range(30)]
    result = run_backtest(kind.from_params(), Tape.of_ticks(lambda: ticks))
    (runner,) = lanes.runners
    assert (result.errors, result.stopped) == (runner.errors, runner.stopped)
    assert result.signals == len(lanes.delivered.get(runner.key, []))
    assert not result.trips
