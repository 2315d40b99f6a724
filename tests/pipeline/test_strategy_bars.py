"""Strategies get bars, indicators and timers: in their lane, in a process, in a replay."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.backtest import BacktestConfig, run_backtest
from qts.domain import Bar, RefusedError, Side, SystemClock, Tick, Timeframe
from qts.pipeline import (
    DecisionJournal,
    IsolatedRunner,
    JournaledStore,
    JournalHeader,
    MarketCalls,
    Portfolio,
    RunnerHooks,
    StrategyConfig,
    StrategyRunner,
    replay_decisions,
)
from qts.pipeline.bar_publisher import BarPublisher
from qts.pipeline.decision_journal import Entry, StrategyCallEntry
from qts.risk import RiskLimitsConfig
from qts.strategies import NoParams, Signal, StepStrategy, Strategy, View, bar_subscription
from tests.backtest.tapes import BEGIN, tape
from tests.instruments import LISTED
from tests.pipeline.portfolios import NOW, view

# ruff: noqa: ARG002, ARG004 - signatures of Strategy

HERE = f"{__name__}:Telling"
SYMBOL = "005930"
SYMBOLS = (SYMBOL, "000660", "KRW-BTC")


class Telling(Strategy[NoParams], key="telling"):
    """Says in the reason of a signal what it was called with and what it saw."""

    symbols = (SYMBOL,)
    timeframes = ("1s", "1m")
    indicators = ("sma(3)", "macd(2,3,2)")
    warm_up = 2
    timer_s = 0.1

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.calls: list[str] = []

    def on_start(self, view: View) -> Iterable[Signal]:
        return self._tell(view, "start", view.now.timestamp())

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.calls.append(f"tick {tick.price:g}")
        return ()

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        assert view.bars(bar.symbol, bar.timeframe, 1)["at"] == bar.at
        return self._tell(view, f"{bar.timeframe} {bar.close:g} {bar.volume:g}", bar.at)

    def on_timer(self, view: View) -> Iterable[Signal]:
        return self._tell(view, "timer", view.now.timestamp())

    def on_stop(self, view: View) -> None:
        self.calls.append("stop")

    def _tell(self, view: View, what: str, at: float) -> Iterator[Signal]:
        closes = [round(each) for each in view.bars(SYMBOL, "1s", 3)["close"]]
        mean = view.indicator(SYMBOL, "1s", "sma(3)")
        self.calls.append(f"{what} {closes} {mean:g}")
        yield Signal(symbol=SYMBOL, side=Side.BUY, at=at, reason=self.calls[-1])


def bars(*closes: float, timeframe: str = "1s", start: float = BEGIN) -> list[Any]:
    made = []
    for n, close in enumerate(closes):
        at = start + (n + 1) * Timeframe(timeframe).seconds
        mean = sum(closes[n - 2 : n + 1]) / 3 if n >= 2 else math.nan
        bar = Bar(SYMBOL, Timeframe(timeframe), at, close, close, close, close, 5.0, 5.0 * close)
        made.append((bar, (mean, math.nan, math.nan, math.nan)))
    return made


class Lane:
    """Calls a strategy as the lanes do; keeps what it delivers and journals."""

    def __init__(
        self, journal: DecisionJournal, make: Callable[[RunnerHooks], StrategyRunner]
    ) -> None:
        self.got: list[str] = []
        self.entries: list[Entry] = []
        self._loop = asyncio.get_running_loop()
        portfolio = Portfolio(SystemClock(), LISTED, JournaledStore(SystemClock(), journal))
        portfolio.load(Decimal(1000), [])

        def record(entry: Entry) -> None:
            journal.append(entry)
            self.entries.append(entry)

        def deliver(_runner: StrategyRunner, found: list[Signal]) -> None:
            self.got += [each.reason for each in found]

        self.runner = make(RunnerHooks(portfolio.view, self._wake, deliver, self._loop, record))

    def _wake(self, _key: str) -> None:
        self._loop.run_in_executor(None, self.runner.run_pending)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():  # noqa: ASYNC110 - the runner has no signal
                await asyncio.sleep(0.002)


@asynccontextmanager
async def in_lane(journal: DecisionJournal) -> AsyncIterator[Lane]:
    yield Lane(journal, lambda hooks: StrategyRunner(Telling(NoParams()), hooks))


@asynccontextmanager
async def isolated(journal: DecisionJournal) -> AsyncIterator[Lane]:
    made = Lane(journal, lambda hooks: IsolatedRunner(HERE, Telling(NoParams()), hooks))
    assert isinstance(made.runner, IsolatedRunner)
    task = asyncio.create_task(made.runner.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait({task})


def journal_at(path: Path) -> DecisionJournal:
    return DecisionJournal(
        path, JournalHeader(NOW, (StrategyConfig(source=HERE),), RiskLimitsConfig().exact)
    )


@pytest.mark.parametrize("run", [in_lane, isolated])
async def test_bars_follow_the_history_and_are_replayed(run: Any, tmp_path: Path) -> None:
    path, minutes = tmp_path / "a.journal", bars(7, 8, timeframe="1m", start=BEGIN - 600)
    with journal_at(path) as journal:
        async with run(journal) as lane:
            runner = lane.runner
            assert runner.is_warming_up
            if run is in_lane:
                assert await runner.evaluate() == []
            runner.add_bars([*minutes, *bars(1, 2)], is_new=False)
            assert not runner.is_warming_up
            await lane.until(lambda: len(lane.got) == 1)
            runner.add_bars(bars(1, 2, 3, 4)[2:])
            await lane.until(lambda: len(lane.got) == 3)
            timer = asyncio.create_task(runner.run_timer(SystemClock()))
            await lane.until(lambda: len(lane.got) >= 4)
            timer.cancel()
            await runner.close(30.0)
    assert lane.got[:4] == [
        "start [1, 2] nan",
        "1s 3 5 [1, 2, 3] 2",
        "1s 4 5 [2, 3, 4] 3",
        "timer [2, 3, 4] 3",
    ]
    calls = [each for each in lane.entries if isinstance(each, StrategyCallEntry)]
    moments = [each.moment for each in calls if each.moment]
    assert (moments[0], moments[-1]) == ("on_start", "on_stop")
    replayed = replay_decisions(path)
    assert replayed.differences == []
    assert replayed.signals == len(lane.got)


async def test_a_killed_process_begins_again_with_the_bars_it_had(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with journal_at(path) as journal:
        async with isolated(journal) as lane:
            assert isinstance(lane.runner, IsolatedRunner)
            lane.runner.add_bars(bars(7, 8, timeframe="1m", start=BEGIN - 600), is_new=False)
            lane.runner.add_bars(bars(1, 2, 3))
            await lane.until(lambda: len(lane.got) == 3)
            pid = lane.runner.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await lane.until(lambda: len(lane.got) == 4)
            lane.runner.add_bars(bars(1, 2, 3, 4)[3:])
            await lane.until(lambda: len(lane.got) == 5)
    assert lane.got[3:] == ["start [1, 2, 3] 2", "1s 4 5 [2, 3, 4] 3"]
    assert replay_decisions(path).differences == []


def runner_of(strategy: Strategy[Any]) -> StrategyRunner:
    loop = asyncio.get_running_loop()
    hooks = RunnerHooks(view, lambda _: None, lambda *_, **__: None, loop, None)
    return StrategyRunner(strategy, hooks)


async def test_a_symbol_that_is_not_warm_is_not_traded() -> None:
    strategy = Telling(NoParams())
    runner = runner_of(strategy)
    runner.add_bars(bars(1))
    runner.tick(Tick(SYMBOL, 1.0, at=BEGIN))
    runner.run_pending()
    assert strategy.calls == []
    runner.add_bars([*bars(7, 8, timeframe="1m", start=BEGIN - 600), *bars(1, 2)[1:]])
    runner.tick(Tick(SYMBOL, 2.0, at=BEGIN + 9))
    runner.run_pending()
    assert strategy.calls[1:] == ["1s 2 5 [1, 2] nan", "tick 2"]


async def test_a_bar_is_handled_before_a_tick_at_its_close() -> None:
    strategy = Telling(NoParams())
    runner = runner_of(strategy)
    runner.add_bars([*bars(7, 8, timeframe="1m", start=BEGIN - 600), *bars(1, 2)], is_new=False)
    runner.tick(Tick(SYMBOL, 2.5, at=BEGIN + 2.9))
    runner.tick(Tick(SYMBOL, 3.5, at=BEGIN + 3))
    runner.add_bars(bars(1, 2, 3)[2:])
    runner.run_pending()
    assert strategy.calls[1:] == ["tick 2.5", "1s 3 5 [1, 2, 3] 2", "tick 3.5"]


def test_a_wrong_declaration_is_refused_with_the_name_of_the_strategy() -> None:
    def refused(**declared: Any) -> str:
        kind = type("Wrong", (Strategy,), declared)
        with pytest.raises(RefusedError) as error:
            bar_subscription(kind)
        return str(error.value)

    assert "strategy wrong: timeframe '2m' is unknown" in refused(timeframes=("2m",))
    assert "are tuples" in refused(timeframes="1m")
    assert "strategy wrong: indicator 'emma'" in refused(
        timeframes=("1m",), indicators=("emma(2)",)
    )
    assert "no timeframes" in refused(indicators=("ema(2)",))
    assert "warm_up is -1" in refused(timeframes=("1m",), warm_up=-1)
    assert "timer_s is 0" in refused(timer_s=0)


def test_the_warm_up_is_what_the_indicators_need() -> None:
    def needed(*indicators: str) -> int:
        return bar_subscription(
            type("Some", (Strategy,), {"timeframes": ("1m",), "indicators": indicators})
        ).warm_up

    assert needed() == 0
    assert needed("sma(200)", "donchian(20)", "vwap") == 200
    assert needed("ema(20)") == 160
    assert needed("rsi(14)") == 224


def test_an_unknown_series_or_indicator_is_named() -> None:
    seen = MarketCalls(Telling(NoParams())).view_of(view())
    assert len(seen.bars(SYMBOL, "1s", 5)) == 0
    with pytest.raises(RefusedError, match="timeframe '5m' is unknown"):
        seen.bars(SYMBOL, "5m", 5)
    with pytest.raises(RefusedError, match=r"indicator 'ema\(9\)' is unknown"):
        seen.indicator(SYMBOL, "1s", "ema(9)")
    with pytest.raises(RefusedError, match="no timeframes"):
        view().bars(SYMBOL, "1s", 5)


class Collecting(Strategy[NoParams], key="collecting"):
    timeframes = ("1s", "1m", "1d")
    indicators = ("ema(2)",)
    warm_up = 0

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.bars: list[tuple[Bar, str]] = []
        self.timers: list[float] = []

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        self.bars.append((bar, f"{view.indicator(bar.symbol, bar.timeframe, 'ema(2)'):.9g}"))
        return ()


times = st.lists(st.floats(0.001, 40.0), min_size=1, max_size=40)


@given(times, st.data())
def test_live_bars_equal_those_of_a_backtest_of_the_same_ticks(
    gaps: list[float], data: st.DataObject
) -> None:
    at, ticks = BEGIN, []
    for gap in gaps:
        at += round(gap, 3)
        symbol = data.draw(st.sampled_from(SYMBOLS))
        ticks.append(Tick(symbol, float(data.draw(st.integers(1, 99))), 2.0, 0, 0, round(at, 3)))
    live, moment = Collecting(NoParams()), BEGIN

    class Clock(SystemClock):
        def now(self) -> datetime:
            return datetime.fromtimestamp(moment, UTC)

    received: list[Any] = []
    deliver = lambda _key, rows, _new: received.extend(rows)  # noqa: E731
    publisher = BarPublisher([live], SYMBOLS, deliver, Clock(), has_history=False)
    for tick in ticks:
        moment = tick.at
        publisher.close_due()
        publisher(tick)
    replayed = Collecting(NoParams())
    run_backtest(replayed, tape(ticks), BacktestConfig(use_stops=False))
    expected = [(bar, f"{values[0]:.9g}") for bar, values in received]
    for symbol in SYMBOLS:  # bars of two symbols with one close have no order
        until = ticks[-1].at - 1  # what is due later is closed live a little later
        assert [bar for bar in replayed.bars if bar[0].symbol == symbol and bar[0].at <= until] == [
            bar for bar in expected if bar[0].symbol == symbol and bar[0].at <= until
        ]


class Clockwork(Strategy[NoParams], key="clockwork"):
    """Trades nothing; keeps the order of its calls."""

    timeframes = ("1m",)
    timer_s = 30.0

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.calls: list[str] = []

    def on_start(self, view: View) -> Iterable[Signal]:
        self.calls.append(f"start {view.now:%M:%S}")
        return ()

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        self.calls.append(f"bar {view.now:%M:%S} {bar.open:g} {bar.close:g}")
        return ()

    def on_timer(self, view: View) -> Iterable[Signal]:
        self.calls.append(f"timer {view.now:%M:%S}")
        return ()

    def on_stop(self, view: View) -> None:
        self.calls.append(f"stop {view.now:%M:%S}")


def test_a_backtest_calls_bars_and_timers_when_they_are_due() -> None:
    strategy = Clockwork(NoParams())
    ticks = [Tick(SYMBOL, float(n + 1), 1.0, 0, 0, BEGIN + 20 * n) for n in range(5)]
    run_backtest(strategy, tape(ticks), BacktestConfig(use_stops=False))
    assert strategy.calls == [
        "start 00:00",
        "timer 00:30",
        "bar 01:00 1 3",
        "timer 01:00",
        "stop 01:20",
    ]


class Stepping(StepStrategy[NoParams], key="stepping"):
    timeframes = ("1m",)
    state_size = 1

    @staticmethod
    def step(state: Any, params: Any, price: float, volume: float, at: float, held: float) -> int:
        rises = price > state[0] > 0
        state[0] = price
        return 1 if rises else -1


def test_a_step_with_timeframes_steps_on_closes() -> None:
    ticks = [
        Tick(SYMBOL, 10_000.0 + 10 * (n // 60) * (-1) ** (n // 180), 1.0, 0, 0, BEGIN + n)
        for n in range(400)
    ]
    result = run_backtest(Stepping(NoParams()), tape(ticks), BacktestConfig(use_stops=False))
    assert result.way == "generic"
    assert [each.side for each in result.fills] == [Side.BUY, Side.SELL]
    assert [each.at.timestamp() - BEGIN for each in result.fills] == [121.0, 241.0]
