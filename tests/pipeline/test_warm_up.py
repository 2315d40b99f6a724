"""Warm-up: a restarted run has the bars of one that was never restarted, or waits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from qts.domain import (
    Bar,
    Clock,
    Market,
    OperationError,
    SystemClock,
    Tick,
    Timeframe,
    UnreachableError,
)
from qts.history import BarCatalogue, RecentBars, RecentRows, Series
from qts.history.catalogue_file import bar_rows
from qts.pipeline.bar_publisher import HELD_S, BarPublisher
from qts.pipeline.warm_up import WarmUp, describe_warm_up
from qts.simulators import SimulatedClock
from qts.strategies import NoParams, Signal, Strategy, View, WarmUpCount, bar_subscription
from qts.venues import BarPage, EarliestBars, RateLimitedError

# ruff: noqa: ARG002 - signatures of ports

BTC, ETH, XRP = "KRW-BTC", "KRW-ETH", "KRW-XRP"
MINUTE, SETTLE_S = 60, 10
BEGIN = datetime(2026, 11, 16, 1, 0, tzinfo=UTC).timestamp()


class Averages(Strategy[NoParams], key="averages"):
    symbols: Sequence[str] = (BTC,)
    timeframes: Sequence[str] = ("1m", "5m", "1h")
    indicators = ("sma(3)", "ema(2)")
    warm_up = 3

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        return ()


class Delivered:
    """What a publisher has delivered: every bar, and the new ones."""

    def __init__(self) -> None:
        self.all: dict[str, list[tuple[Bar, tuple[float, ...]]]] = defaultdict(list)
        self.new: list[Bar] = []

    def __call__(self, _key: str, bars: list[tuple[Bar, tuple[float, ...]]], is_new: bool) -> None:
        for bar, values in bars:
            self.all[bar.timeframe].append((bar, values))
            if is_new:
                self.new.append(bar)


class SetClock(SystemClock):
    at = BEGIN

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


def candles(ticks: Iterable[Tick], end: float) -> list[Bar]:
    """The venue's own minutes: the judge of those that a run builds."""
    minutes: dict[float, list[Tick]] = defaultdict(list)
    for tick in ticks:
        minutes[tick.at // MINUTE * MINUTE + MINUTE].append(tick)
    made = []
    for at, inside in sorted(minutes.items()):
        prices, volume = [each.price for each in inside], sum(each.volume for each in inside)
        value = sum(each.price * each.volume for each in inside)
        outer = (prices[0], max(prices), min(prices), prices[-1])
        made.append(Bar(inside[0].symbol, Timeframe.M1, at, *outer, volume, value))
    return [bar for bar in made if bar.at <= end]


def latest(now: float) -> float:
    return (now - SETTLE_S) // MINUTE * MINUTE


def same(one: tuple[Bar, tuple[float, ...]], other: tuple[Bar, tuple[float, ...]]) -> bool:
    (bar, values), (expected, their_values) = one, other
    return bar[:8] == expected[:8] and all(
        math.isclose(a, b, rel_tol=1e-9) or (math.isnan(a) and math.isnan(b))
        for a, b in zip((bar.value, *values), (expected.value, *their_values), strict=True)
    )


@settings(max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**32), st.integers(5, 60), st.floats(1.0, 60.0))
def test_a_restarted_run_has_the_bars_of_one_that_was_never_restarted(
    seed: int, restart: int, mean_gap_s: float
) -> None:
    """From the same ticks, wherever the restart falls and however late the history comes."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    at, ticks = BEGIN, []
    for _ in range(120):
        at = round(at + chance.expovariate(1 / mean_gap_s), 3)
        ticks.append(Tick(BTC, chance.randint(90, 110) + 0.0, chance.randint(0, 3) + 0.0, at=at))
    whole, restarted, clock = Delivered(), Delivered(), SetClock()
    uninterrupted = BarPublisher([Averages(NoParams())], [BTC], whole, clock, has_history=False)
    run = BarPublisher([Averages(NoParams())], [BTC], restarted, clock, has_history=True)
    series = run.warming[BTC, Timeframe.M1]
    first_read = ticks[restart].at + chance.uniform(0.0, 200.0)
    next_read = 0.0
    for number, tick in enumerate(ticks):
        while clock.at < tick.at:
            clock.at = min(tick.at, clock.at + 1.0)
            uninterrupted.close_due()
            run.close_due()
            end = latest(clock.at)
            is_due = first_read <= clock.at < end + MINUTE
            if series.has_history:
                is_due = end >= series.needs
            if run.warming and number > restart and is_due and clock.at >= next_read:
                next_read = clock.at + chance.uniform(0.0, 200.0)
                known = candles(ticks[:number], end)
                run.enter(series, RecentRows(bar_rows(known), end))
        uninterrupted(tick)
        if number >= restart:
            run(tick)
    for timeframe, expected in whole.all.items():
        got = restarted.all[timeframe]
        last = got[-1][0].at if got else 0.0
        closed = [each for each in expected if each[0].at <= last][-len(got) :] if got else []
        assert len(got) == len(closed)
        assert all(map(same, got, closed)), (timeframe, got, closed)
        if not run.warming:  # joined: nothing is missing at the end either
            assert [each for each in expected if each[0].at > last] == []
    assert all(bar.at > ticks[restart].at for bar in restarted.new)


def test_ticks_are_held_for_minutes_only_while_the_history_does_not_come() -> None:
    clock, delivered = SetClock(), Delivered()
    run = BarPublisher([Averages(NoParams())], [BTC], delivered, clock, has_history=True)
    series = run.warming[BTC, Timeframe.M1]
    assert series.needs == math.inf
    for second in range(3600):
        run(Tick(BTC, 100.0, 1.0, 0, 0, BEGIN + second))
    assert 3600 - HELD_S - MINUTE <= series.needs - BEGIN <= 3600 - HELD_S + MINUTE
    assert delivered.all == {}


def test_a_strategy_without_a_warm_up_does_not_wait_for_one_that_has() -> None:
    class Plain(Averages, key="plain"):
        timeframes = ("1m",)
        warm_up = 0

    got: list[str] = []
    clock = SetClock()
    both = [Averages(NoParams()), Plain(NoParams())]
    run = BarPublisher(both, [BTC], lambda key, *_: got.append(key), clock, has_history=True)
    run(Tick(BTC, 100.0, 1.0, 0, 0, BEGIN + 1))
    clock.at = BEGIN + 61
    run.close_due()
    assert got == ["plain"]


# --- a venue with faults, a catalogue, and the clock of a market ---------------------------------


class Venue:
    """Venue that traded in every minute of the past 300 days, and has faults on demand."""

    market, zone, per_second, simulated = Market.UPBIT, UTC, 100_000.0, False

    def __init__(self, clock: Clock, listed: float = BEGIN - 300 * 86_400) -> None:
        self.clock, self.listed = clock, listed
        self.faults: list[Exception] = []
        self.broken: set[str] = set()
        self.slow: dict[str, float] = {}  # seconds of a page
        self.asked: list[tuple[str, float, float]] = []

    async def symbols(self) -> None:
        return None

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:
        return EarliestBars(BEGIN - 400 * 86_400, "")

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        return end - bars * timeframe.seconds

    def latest(self, timeframe: Timeframe, now: float) -> float:
        return (now - SETTLE_S) // timeframe.seconds * timeframe.seconds

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:
        return math.ceil((end - start) / timeframe.seconds / 200)

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        self.asked.append((symbol, start, end))
        await self.clock.sleep(self.slow.get(symbol, 0.0))
        if symbol in self.broken:
            raise UnreachableError("candles that cannot be parsed")
        if self.faults:
            raise self.faults.pop()
        length = timeframe.seconds
        first = max(start, end - 200 * length)
        closes = [first + n * length for n in range(1, round((end - first) / length) + 1)]
        bars = [self.bar(symbol, timeframe, at) for at in closes if at > self.listed]
        return BarPage(bars, first)

    @staticmethod
    def bar(symbol: str, timeframe: Timeframe, at: float) -> Bar:
        price = 1000.0 + at // timeframe.seconds % 97
        return Bar(symbol, timeframe, at, price, price + 1, price - 1, price, 2.0, 2.0 * price)


class Long(Strategy[NoParams], key="long"):
    symbols: Sequence[str] = (BTC, ETH)
    timeframes: Sequence[str] = ("1m", "5m", "1d")
    indicators = ("sma(200)",)

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        return ()


class Warm:
    """A warm-up at a venue, sixty times as fast as time."""

    def __init__(self, home: Path, strategy: Strategy[Any]) -> None:
        self.clock = SimulatedClock(SystemClock(), datetime.fromtimestamp(BEGIN, UTC), 60.0)
        self.venue = Venue(self.clock)
        self.catalogue = BarCatalogue(home)
        self.delivered, self.strategy = Delivered(), strategy
        self.counts = WarmUpCount(bar_subscription(strategy))
        self.bars = BarPublisher([strategy], [], self._deliver, self.clock, has_history=True)
        recent = RecentBars(self.venue, self.venue, self.catalogue, self.clock)
        self.warm_up = WarmUp(self.bars, recent, (BTC, ETH, XRP), self.clock)

    def _deliver(self, key: str, bars: Any, is_new: bool) -> None:
        self.delivered(key, bars, is_new)
        for bar, _ in bars:
            self.counts.add(bar)

    @property
    def left(self) -> str:
        return describe_warm_up(self.counts, self.bars.subscriptions[self.strategy.key])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.warm_up.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() or task.exception() is None

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():  # noqa: ASYNC110 - the warm-up has no signal
                await asyncio.sleep(0.01)

    async def until_read(self) -> None:
        read = self.warm_up.progress
        await self.until(lambda: self.warm_up.progress.read == read.series)


@pytest.fixture
def warm(tmp_path: Path) -> Warm:
    return Warm(tmp_path, Long(NoParams()))


async def test_every_series_gets_its_bars_from_the_venue_and_keeps_them(
    warm: Warm, tmp_path: Path
) -> None:
    assert warm.left == "0 of 6 series"
    async with warm.running():
        await warm.until_read()
    assert warm.left == ""
    assert warm.delivered.new == []
    for timeframe, got in warm.delivered.all.items():
        for symbol in (BTC, ETH):
            bars = [bar for bar, _ in got if bar.symbol == symbol]
            assert len(bars) == 200
            seconds = Timeframe(timeframe).seconds
            assert [bar.at for bar in bars] == [
                bars[-1].at - n * seconds for n in range(199, -1, -1)
            ]
    minutes = [bar for bar, _ in warm.delivered.all["1m"] if bar.symbol == BTC]
    assert minutes == [Venue.bar(BTC, Timeframe.M1, bar.at) for bar in minutes]
    again = Warm(tmp_path, Long(NoParams()))
    again.clock = warm.clock
    async with again.running():
        await again.until_read()
    length = {Timeframe.M1: 60, Timeframe.D1: 86_400}
    assert all(end - start <= 3 * length[Timeframe.M1] for _, start, end in again.venue.asked)


async def test_symbols_are_read_in_the_order_of_the_strategy(warm: Warm) -> None:
    async with warm.running():
        await warm.until_read()
    order = [symbol for symbol, *_ in warm.venue.asked]
    assert order.index(BTC) < order.index(ETH)


async def test_held_ticks_do_not_wait_for_the_first_read_of_others(warm: Warm) -> None:
    class Three(Long, key="three"):
        symbols = (BTC, ETH, XRP)
        timeframes = ("1m",)

    many = Warm(warm.catalogue.root.parent, Three(NoParams()))
    many.venue.slow = {ETH: 80.0}
    many.bars(Tick(BTC, 1000.0, 1.0, 0, 0, BEGIN + 1))
    async with many.running():
        await many.until(lambda: XRP in [symbol for symbol, *_ in many.venue.asked])
    order = [symbol for symbol, *_ in many.venue.asked]
    assert BTC in order[order.index(ETH) : order.index(XRP)]


@pytest.mark.parametrize(
    "error",
    [
        RateLimitedError("429"),
        UnreachableError("HTTP 500"),
        UnreachableError("candles that cannot be parsed"),
        OperationError("the clock of this machine is ahead"),
    ],
)
async def test_a_venue_that_fails_is_read_again(warm: Warm, error: Exception) -> None:
    warm.venue.faults = [error] * 4
    async with warm.running():
        await warm.until(lambda: len(warm.venue.asked) == 2)
        assert warm.left == "0 of 6 series"
        await warm.until_read()
    assert warm.left == ""


async def test_a_symbol_that_cannot_be_read_does_not_hold_back_the_others(warm: Warm) -> None:
    warm.venue.broken = {BTC}
    async with warm.running():
        await warm.until(lambda: warm.left == "3 of 6 series")
        assert warm.counts.warm == {ETH}
        warm.venue.broken = set()
        await warm.until_read()
    assert warm.counts.warm == {BTC, ETH}


@pytest.mark.parametrize(("listed", "left"), [(BEGIN - 3600, "0"), (math.inf, "0")])
async def test_a_symbol_with_too_few_bars_is_not_warm(warm: Warm, listed: float, left: str) -> None:
    warm.venue.listed = listed
    async with warm.running():
        await warm.until_read()
    assert warm.left == f"{left} of 6 series"
    assert warm.counts.warm == set()


async def test_a_catalogue_with_a_gap_that_ends_days_ago_is_completed(warm: Warm) -> None:
    class Hour(Long, key="hour"):
        symbols = (BTC,)
        timeframes = ("1h",)

    late = Warm(warm.catalogue.root.parent, Hour(NoParams()))
    series, ends = Series(Market.UPBIT, "1m", BTC), (BEGIN - 4 * 86_400, BEGIN - 2 * 86_400)
    for end in ends:
        span = (end - 86_400, end)
        stored = [Venue.bar(BTC, Timeframe.M1, span[0] + n * 60) for n in range(1, 1441)]
        with late.catalogue.writing():
            late.catalogue.write(series, span, bar_rows(stored))
    async with late.running():
        await late.until_read()
    assert late.left == ""
    hours = [bar for bar, _ in late.delivered.all["1h"]]
    assert len(hours) == 200
    assert all(bar.volume == 120.0 for bar in hours)
    for _, start, page_end in late.venue.asked:
        assert not any(start >= end - 86_400 and page_end <= end for end in ends)


async def test_another_writer_of_the_catalogue_delays_the_warm_up(warm: Warm) -> None:
    other = BarCatalogue(warm.catalogue.root.parent)
    with other.writing():
        async with warm.running():
            await asyncio.sleep(0.2)
            assert warm.left == "0 of 6 series"
    async with warm.running():
        await warm.until_read()


async def test_ticks_join_the_history_at_the_next_minute(warm: Warm) -> None:
    """The bar that was forming comes from the venue, and is new; the next one from ticks."""

    class Minutes(Long, key="minutes"):
        symbols = (BTC,)
        timeframes = ("1m",)

    late = Warm(warm.catalogue.root.parent, Minutes(NoParams()))

    async def trade() -> None:
        while True:
            now = late.clock.now().timestamp()
            late.bars(Tick(BTC, 5000.0, 1.0, 0, 0, now))
            late.bars.close_due()
            await asyncio.sleep(0.01)

    trading = asyncio.create_task(trade())
    async with late.running():
        await late.until(lambda: len(late.delivered.new) >= 3)
    trading.cancel()
    bars = [bar for bar, _ in late.delivered.all["1m"]]
    assert [b.at - a.at for a, b in itertools.pairwise(bars)] == [60.0] * (len(bars) - 1)
    forming, first, *_ = late.delivered.new
    assert forming == Venue.bar(BTC, Timeframe.M1, forming.at)
    assert (first.open, first.close) == (5000.0, 5000.0)
    assert bars.index(forming) == 200
