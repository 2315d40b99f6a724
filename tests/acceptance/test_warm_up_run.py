"""Runs that are killed and restarted: their strategy is warm at once, on the venue's own bars.

The simulators keep real time: the market does not stop for a restart.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, NamedTuple

import aiohttp
import pytest

from qts.pipeline import replay_decisions
from qts.pipeline.decision_journal import StrategyCallEntry, read_journal
from qts.simulators import MarketConfig
from qts.simulators.control import Fault
from qts.simulators.market.rules import moment_of, seconds_of
from qts.strategies import Signal
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account

pytestmark = pytest.mark.timeout(300)

SYMBOLS = 3
WARM_UP = 200
MARKET = MarketConfig(symbols=SYMBOLS, surges_per_hour=0.0, suspended=0, always_open=True)
LESS_OFTEN = (
    ("kis", "error"),
    ("kis", "cut"),
    ("upbit", "cut"),
    ("upbit", "error"),
    ("upbit", "limit"),
)
CANDLES = {"upbit": "/v1/candles", "kis": "/uapi/domestic-stock/v1/quotations/inquire-time"}


class Calls(NamedTuple):
    """What the journal of a run says about the calls of its strategy."""

    signals: list[Signal]
    history: list[Any]  # bars that were not new
    new: list[Any]


def read_calls(folder: Path) -> Calls:
    journal = max(folder.iterdir(), default=None)
    if journal is None:
        return Calls([], [], [])
    calls = [each for each in read_journal(journal) if isinstance(each, StrategyCallEntry)]
    bars = [each for call in calls for each in call.bars]
    return Calls(
        [each for call in calls for each in call.on_tick if isinstance(each, Signal)],
        [each.bar for each in bars if not each.is_new],
        [each.bar for each in bars if each.is_new],
    )


class RestartedRun:
    """A home on a simulator, and its runs one after the other."""

    def __init__(self, account: SimulatedAccount, folder: Path, **settings: str) -> None:
        folder.mkdir()
        self.home, self.journals = folder.resolve() / "home", folder / "journals"
        self.journals.mkdir()
        self._settings = account.settings(folder) | {
            "QTS_BROKERS__BROKER": "paper",
            "QTS_PIPELINE__STRATEGIES": "tests.acceptance.minute_trend:MinuteTrend",
            "QTS_PIPELINE__JOURNAL": str(self.journals),
            **settings,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Run]:
        with running(self.home, **self._settings) as run:
            await asyncio.to_thread(run.until, "Ready")
            yield run

    async def until(self, done: Callable[[Calls], bool], seconds: float = 90.0) -> Calls:
        async with asyncio.timeout(seconds):
            while True:  # another process: there is no signal to wait for
                calls = await asyncio.to_thread(read_calls, self.journals)
                if done(calls):
                    return calls
                await asyncio.sleep(0.2)


def judge(account: SimulatedAccount, bars: list[Any]) -> None:
    """Compare bars of minutes with the simulator's own."""
    simulator, unit = account.simulator, 10**8 if account.name == "upbit" else 1
    history = simulator.history
    for symbol in simulator.symbols():
        index = simulator.market.index[symbol]
        got = [bar for bar in bars if bar.symbol == symbol and bar.timeframe == "1m"]
        assert len({bar.at for bar in got}) == len(got) >= WARM_UP
        first, last = (datetime.fromtimestamp(got[n].at, UTC) for n in (0, -1))
        own = history.minutes(index, seconds_of(first) - 60, seconds_of(last))
        by_close = {
            moment_of(int(start)).timestamp() + 60: [float(each) for each in row]
            for start, *row in zip(*own[:6], strict=True)
        }
        assert {bar.at for bar in got} <= by_close.keys()
        for bar in got:
            prices = [each / unit for each in by_close[bar.at]]
            assert list(bar[3:8]) == pytest.approx(prices), bar
        assert len(got) == len(by_close)  # without a hole


def started(calls: Calls) -> bool:
    return len([each for each in calls.signals if each.reason.startswith("start")]) == SYMBOLS


@pytest.mark.parametrize(
    ("name", "isolated"),
    [("kis", ""), pytest.param("upbit", "minute_trend", marks=pytest.mark.soak)],
)
async def test_a_killed_run_signals_within_a_minute_of_its_restart(
    name: str, isolated: str, tmp_path: Path
) -> None:
    async with simulated_account(name, MARKET) as account:
        more = {"QTS_PIPELINE__ISOLATED_STRATEGIES": isolated} if isolated else {}
        run_b = RestartedRun(account, tmp_path / "b", **more)
        async with run_b.running() as run:
            calls = await run_b.until(started)
            run.process.send_signal(SIGKILL)
        judge(account, calls.history)
        asked = Fault(kind="slow", path=CANDLES[name], seconds=0.0)  # counts the requests
        account.simulator.faults.add(asked)
        began = time.monotonic()
        async with run_b.running() as run:
            calls = await run_b.until(lambda calls: started(calls) and len(calls.history) > 0)
            assert time.monotonic() - began < 60.0
            await asyncio.to_thread(run.end, SIGTERM)
        assert run.summary["strategies"]["minute_trend"]["state"] == "running"
        judge(account, calls.history)
        assert all(math.isfinite(float(each.reason.split()[2])) for each in calls.signals)
        assert asked.struck <= 2 * SYMBOLS  # the rest was in the catalogue
        for journal in run_b.journals.iterdir():
            assert replay_decisions(journal).differences == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kis", "limit"),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in LESS_OFTEN),
    ],
)
async def test_a_strategy_waits_while_the_history_fails(
    name: str, kind: str, tmp_path: Path
) -> None:
    """429, HTTP 500, half a reply; killed meanwhile, the next run is warm when it ends."""
    async with simulated_account(name, MARKET) as account, aiohttp.ClientSession() as session:
        url = f"{account.simulator.url}/_control/faults"
        await session.post(url, json={"kind": kind, "path": CANDLES[name]})
        failing = RestartedRun(account, tmp_path / "failing")
        async with failing.running() as run:
            await asyncio.to_thread(wait_for, run, "history not read; retrying")
            assert read_calls(failing.journals).signals == []
            run.process.send_signal(SIGKILL)
        async with failing.running() as run:
            await asyncio.to_thread(wait_for, run, "history not read; retrying", 2)
            assert read_calls(failing.journals).signals == []
            await session.delete(url)
            calls = await failing.until(started, seconds=150.0)
            await asyncio.to_thread(run.end, SIGTERM)
        assert run.summary["strategies"]["minute_trend"]["state"] == "running"
        judge(account, calls.history)


def wait_for(run: Run, words: str, count: int = 1) -> None:
    """Wait for lines of the log."""
    end = time.monotonic() + 90.0
    while run.errors.count(words) < count:
        assert run.process.poll() is None, run.errors[-4000:]
        assert time.monotonic() < end, run.errors[-4000:]
        time.sleep(0.2)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["kis", "upbit"])
async def test_a_restarted_run_gives_the_signals_of_one_that_never_was(
    name: str, tmp_path: Path
) -> None:
    """Run A is never restarted; run B is killed in the middle. The signals after it are equal."""

    def minutes(calls: Calls) -> dict[tuple[str, float], Signal]:
        return {(s.symbol, s.at): s for s in calls.signals if s.reason.startswith("bar")}

    async with simulated_account(name, MARKET) as account:
        run_a = RestartedRun(account, tmp_path / "a")
        run_b = RestartedRun(account, tmp_path / "b")
        async with run_a.running():
            async with run_b.running() as run:
                await run_b.until(lambda calls: len(minutes(calls)) >= SYMBOLS, seconds=200)
                run.process.send_signal(SIGKILL)
            async with run_b.running():
                ended = await run_b.until(lambda c: len(minutes(c)) >= 4 * SYMBOLS, seconds=400)
            whole = await run_a.until(
                lambda calls: set(minutes(ended)) <= set(minutes(calls)), seconds=30
            )
        ours, theirs = minutes(ended), minutes(whole)
        assert len(ours) >= 4 * SYMBOLS
        for key, signal in ours.items():
            assert signal.side == theirs[key].side
            averages = [float(each) for each in signal.reason.split()[1:]]
            expected = [float(each) for each in theirs[key].reason.split()[1:]]
            assert averages == pytest.approx(expected, rel=1e-3)
