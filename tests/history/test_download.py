"""Downloads: complete after any interruption, equal to what the venue has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import Bar, ManualClock, Market, OperationError, RefusedError, Timeframe
from qts.feed import SEOUL, TradingCalendar
from qts.history import BarCatalogue, Downloader, Series, parse_moment, plan_download
from qts.simulators import (
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    RequestLimits,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from qts.venues import (
    KisConfig,
    KisHistory,
    KisHistoryRules,
    RateLimitConfig,
    UpbitClient,
    UpbitConfig,
    UpbitHistory,
    UpbitHistoryRules,
)
from qts.venues.kis.quotes import midnight
from tests.history.downloads import ListedBars, Unreachable, download, stored
from tests.venues.kis import config_for, open_client

DAY_S = 86_400.0
START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
OPEN = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)  # Monday, 09:00 in Seoul
MANY = RequestLimits(second=0, minute=0, day=0)
CALENDAR = TradingCalendar()


def daily(number: int, price: float = 100.0) -> Bar:
    return Bar("A", Timeframe.D1, START + number * DAY_S, *(price,) * 4, 1.0, price)


# Interruptions


@settings(max_examples=40, deadline=None)
@given(
    bars=st.sets(st.integers(1, 60)),
    kills=st.sets(st.integers(1, 30)),
    spans=st.lists(st.tuples(st.integers(0, 30), st.integers(31, 60)), min_size=1, max_size=3),
    page=st.integers(1, 5),
)
def test_interrupted_downloads_end_up_with_every_bar_once(
    tmp_path_factory: pytest.TempPathFactory,
    bars: set[int],
    kills: set[int],
    spans: list[tuple[int, int]],
    page: int,
) -> None:
    home = tmp_path_factory.mktemp("home")
    venue = ListedBars([daily(n, 100.0 + n) for n in bars], page, kills)
    for first, last in spans:
        wanted = (START + first * DAY_S, START + last * DAY_S)
        while True:
            try:
                asyncio.run(download(home, venue, venue, ["A"], Timeframe.D1, wanted))
                break
            except KeyboardInterrupt:
                continue
    low, high = min(first for first, _ in spans), max(last for _, last in spans)
    covered = BarCatalogue(home).covered(Series(Market.KRX, "1d", "A"))
    assert covered == [(START + low * DAY_S, START + high * DAY_S)]
    expected = [daily(n, 100.0 + n) for n in sorted(bars) if low < n <= high]
    assert stored(home, Market.KRX, "A", Timeframe.D1) == expected


async def test_what_is_covered_is_not_requested_again(tmp_path: Path) -> None:
    venue = ListedBars([daily(n) for n in (2, 3, 9)], 2, set())
    wanted = (START, START + 10 * DAY_S)
    first = await download(tmp_path, venue, venue, ["A"], Timeframe.D1, wanted)
    assert (first.pages, first.bars) == (2, 3)
    again = await download(tmp_path, venue, venue, ["A"], Timeframe.D1, wanted)
    assert (again.pages, again.bars, venue.requests_made) == (0, 0, 2)


async def test_days_that_a_split_has_changed_are_read_again(tmp_path: Path) -> None:
    """KIS divides all days before a split; two scales in one series would be a false crash."""
    before = ListedBars([daily(n, 500.0) for n in range(1, 21)], 100, set())
    await download(tmp_path, before, before, ["A"], Timeframe.D1, (START, START + 20 * DAY_S))
    after = ListedBars([daily(n, 100.0) for n in range(1, 31)], 100, set())
    wanted = (START + 15 * DAY_S, START + 30 * DAY_S)
    result = await download(tmp_path, after, after, ["A"], Timeframe.D1, wanted)
    assert result.read_again == ["A"]
    assert stored(tmp_path, Market.KRX, "A", Timeframe.D1) == after.bars


async def test_a_venue_that_answers_again_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(clock, "sleep", sleep)
    for failures, ends in (({1, 2, 3}, True), (set(range(1, 7)), False)):
        venue = Unreachable([daily(n) for n in range(1, 10)], 2, failures)
        catalogue = BarCatalogue(tmp_path / str(ends))
        wanted = (START, START + 10 * DAY_S)
        plan = plan_download(venue, catalogue, ["A"], Timeframe.D1, wanted, START * 2)
        downloader = Downloader(plan, venue, catalogue, clock, lambda _progress: None)
        with catalogue.writing():
            if ends:
                assert (await downloader.run()).bars == 9
            else:
                with pytest.raises(OperationError, match="A: no reply"):
                    await downloader.run()
    assert waits == [1, 2, 4, 1, 2, 4, 8, 16]


# Upbit


@asynccontextmanager
async def upbit(skew_s: float = 0.0) -> AsyncIterator[tuple[UpbitSimulator, UpbitHistory]]:
    start = datetime(2026, 11, 16, 9, 5)  # noqa: DTZ001 - Korean time
    market = MarketConfig(symbols=20, suspended=0, start=start, skew_s=skew_s)
    config = UpbitSimulatorConfig(market=market, quotation_second=1000)
    async with UpbitSimulator(config, ManualClock(OPEN)) as simulator:
        settings = UpbitConfig(url=simulator.url, quotes_per_second=100)
        async with UpbitClient.open(settings, ManualClock(OPEN)) as client:
            yield simulator, UpbitHistory(client)


@pytest.mark.parametrize("timeframe", [Timeframe.M1, Timeframe.D1])
async def test_candles_of_upbit_are_those_of_the_venue(
    tmp_path: Path, timeframe: Timeframe
) -> None:
    end = OPEN.timestamp()
    wanted = (end - (2 if timeframe is Timeframe.M1 else 500) * DAY_S, end)
    rules = UpbitHistoryRules(UpbitConfig())
    async with upbit() as (simulator, history):
        symbols = ["KRW-BTC", simulator.market.universe.codes[-1]]  # the last trades rarely
        result = await download(tmp_path, history, rules, symbols, timeframe, wanted)
        for symbol in symbols:
            expected = _candles(simulator, symbol, timeframe, wanted)
            assert stored(tmp_path, Market.UPBIT, symbol, timeframe) == expected
            assert expected
    assert result.failed == {}
    assert not result.without_bars


def _candles(
    simulator: UpbitSimulator, symbol: str, timeframe: Timeframe, wanted: tuple[float, float]
) -> list[Bar]:
    """Return the bars as the simulator has them, without its paging."""
    index = simulator.market.universe.codes.index(symbol)
    history = simulator.history
    seoul = date(1970, 1, 1).toordinal() * 86_400 + 9 * 3600  # epoch in its seconds
    bars = []
    if timeframe is Timeframe.M1:
        found = history.minutes(index, int(wanted[0]) + seoul, int(wanted[1]) + seoul)
        starts = [int(start) - seoul for start in found.start]
        rows = list(zip(starts, *found[1:], strict=True))
    else:
        first = int(wanted[0]) // 86_400 + date(1970, 1, 1).toordinal()
        days = [history.day(index, first + n) for n in range(int((wanted[1] - wanted[0]) // DAY_S))]
        rows = [
            ((int(d.start[0]) - date(1970, 1, 1).toordinal()) * 86_400, *(c[0] for c in d[1:]))
            for d in days
            if len(d.start)
        ]
    for start, opens, high, low, close, volume, value in rows:
        prices = [float(each) / 1e8 for each in (opens, high, low, close)]
        numbers = [*prices, int(volume) / 10**8, float(value) / 1e8 / 1e8]
        bars.append(Bar(symbol, timeframe, float(start + timeframe.seconds), *numbers))
    return bars


async def test_a_market_that_upbit_does_not_list_fails_alone(tmp_path: Path) -> None:
    rules = UpbitHistoryRules(UpbitConfig())
    wanted = (OPEN.timestamp() - 5 * DAY_S, OPEN.timestamp())
    async with upbit() as (_, history):
        symbols = ["KRW-NOPE", "KRW-BTC"]
        result = await download(tmp_path, history, rules, symbols, Timeframe.D1, wanted)
    assert list(result.failed) == ["KRW-NOPE"]
    assert result.bars == 5


async def test_a_clock_ahead_of_the_venue_stores_nothing(tmp_path: Path) -> None:
    """A bar that has ended by our clock may still be forming at the venue."""
    rules = UpbitHistoryRules(UpbitConfig())
    wanted = (OPEN.timestamp() - 5 * DAY_S, OPEN.timestamp())
    async with upbit(skew_s=-20) as (_, history):
        with pytest.raises(OperationError, match="20 s ahead of that of Upbit"):
            await download(tmp_path, history, rules, ["KRW-BTC"], Timeframe.D1, wanted)
    assert stored(tmp_path, Market.UPBIT, "KRW-BTC", Timeframe.D1) == []


# KIS


@asynccontextmanager
async def kis(
    tmp_path: Path, minutes: int = 0, **market: object
) -> AsyncIterator[tuple[KisSimulator, KisHistory, ManualClock]]:
    """Yield a simulator and its client some minutes after the opening of a Monday."""
    clock = ManualClock(OPEN - timedelta(minutes=1))
    config = KisSimulatorConfig(market=MarketConfig(symbols=60, **market), limits=MANY)  # type: ignore[arg-type]
    async with KisSimulator(config, clock) as simulator:
        await clock.advance(minutes * 60.0)
        settings = config_for(
            simulator.url, limits=RateLimitConfig(per_second=1000, per_minute=60_000)
        )
        async with open_client(settings, tmp_path, clock) as client:
            yield simulator, KisHistory(client, CALENDAR, clock), clock


def kis_rules(**changes: object) -> KisHistoryRules:
    return KisHistoryRules(KisConfig(**changes), CALENDAR)  # type: ignore[arg-type]


def _expected_days(simulator: KisSimulator, symbol: str, first: date, last: date) -> list[Bar]:
    index, history = simulator.market.universe.codes.index(symbol), simulator.history
    bars = []
    for day in range(first.toordinal(), last.toordinal() + 1):
        found = history.day(index, day)
        if len(found.start):
            sessions = CALENDAR.sessions(date.fromordinal(day))
            (regular,) = [each for each in sessions if each.name == "regular"]
            numbers = [float(column[0]) for column in found[1:]]
            bars.append(Bar(symbol, Timeframe.D1, regular.closes_at.timestamp(), *numbers))
    return bars


async def test_days_of_kis_are_those_of_the_venue(tmp_path: Path) -> None:
    first, last = date(2023, 11, 1), date(2026, 11, 13)
    wanted = midnight(first), midnight(last + timedelta(days=1))
    async with kis(tmp_path) as (simulator, history, _):
        facts, codes = simulator.history, simulator.market.universe.codes
        split = next(i for i in range(10, 58) if facts.split_on(i))
        young = next(i for i in range(10, 58) if facts.listed_on(i) > date(2024, 1, 1).toordinal())
        symbols = ["005930", codes[split], codes[young]]
        result = await download(tmp_path, history, kis_rules(), symbols, Timeframe.D1, wanted)
        for symbol in symbols:
            expected = _expected_days(simulator, symbol, first, last)
            assert stored(tmp_path, Market.KRX, symbol, Timeframe.D1) == expected
            assert len(expected) > 100
        halted = next(
            day
            for day in range(first.toordinal(), last.toordinal())
            for i in range(10, 58)
            if facts.halted(i, day) and CALENDAR.trades_on(date.fromordinal(day))
        )
    assert halted
    assert (result.failed, result.without_bars) == ({}, [])


async def test_minutes_of_kis_are_those_of_the_venue_also_of_today(tmp_path: Path) -> None:
    now = OPEN + timedelta(minutes=95)
    wanted = (datetime(2026, 11, 12, tzinfo=SEOUL).timestamp(), now.timestamp())
    async with kis(tmp_path, 96) as (simulator, history, clock):
        assert clock.now() == now
        thin = simulator.market.universe.codes[-3]  # it trades in few minutes
        symbols = ["005930", thin]
        await download(tmp_path, history, kis_rules(), symbols, Timeframe.M1, wanted)
        epoch = date(1970, 1, 1).toordinal() * 86_400 + 9 * 3600
        for symbol in symbols:
            index = simulator.market.universe.codes.index(symbol)
            found = simulator.history.minutes(index, int(wanted[0]) + epoch, int(wanted[1]) + epoch)
            rows = zip(*(column.tolist() for column in found), strict=True)
            split = simulator.history.split_on(index)
            assert split is None
            expected = [
                Bar(symbol, Timeframe.M1, start - epoch + 60.0, *(float(each) for each in rest))
                for start, *rest in rows
            ]
            got = stored(tmp_path, Market.KRX, symbol, Timeframe.M1)
            assert got == expected
    assert len(got) < 1000


def test_a_forming_bar_is_never_requested() -> None:
    now, rules = OPEN.timestamp(), kis_rules()
    assert rules.latest(Timeframe.M1, now + 9.9) == now - 60
    assert rules.latest(Timeframe.M1, now + 10) == now
    evening = datetime(2026, 11, 16, 23, 0, tzinfo=SEOUL)
    for hours, day in ((0, 16), (6.9, 16), (7, 17)):  # final from 06:00 of the next day
        found = rules.latest(Timeframe.D1, (evening + timedelta(hours=hours)).timestamp())
        assert found == datetime(2026, 11, day, tzinfo=SEOUL).timestamp()
    upbit_rules = UpbitHistoryRules(UpbitConfig())
    assert upbit_rules.latest(Timeframe.D1, now + 9) == now - DAY_S


# Plans


def test_a_plan_is_arithmetic_over_the_limits(tmp_path: Path) -> None:
    month = (OPEN.timestamp() - 30 * DAY_S, OPEN.timestamp())
    upbit_plan = plan_download(
        UpbitHistoryRules(UpbitConfig()),
        BarCatalogue(tmp_path),
        ["KRW-BTC", "KRW-ETH"],
        Timeframe.M1,
        month,
        OPEN.timestamp() + 60,
    )
    assert (upbit_plan.requests, upbit_plan.seconds) == (432, 43.2)
    assert (
        "requests: 432 at most, 10.0 a second within the limits, about 43 s" in upbit_plan.render()
    )
    days = plan_download(
        kis_rules(), BarCatalogue(tmp_path), ["005930"] * 50, Timeframe.D1,
        (OPEN.timestamp() - 3 * 365 * DAY_S, None), OPEN.timestamp(),
    )  # fmt: skip
    assert (days.requests, days.per_second) == (400, 12.0)


@pytest.mark.parametrize(
    ("rules", "timeframe", "start", "text"),
    [
        (kis_rules(), Timeframe.M1, "2025-11-10", "one year; expected --from 2025-11-16 or later"),
        (kis_rules(paper=True), Timeframe.M1, "2026-11-13", "of past days to paper keys"),
        (kis_rules(), Timeframe.D1, "1970-01-01", "no older days; expected --from 1980-01-04"),
        (UpbitHistoryRules(UpbitConfig()), Timeframe.D1, "2017-01-01", "--from 2017-09-25 or"),
        (kis_rules(), Timeframe.D1, "2026-11-16", "no closed 1d bar between"),
        (kis_rules(), Timeframe.D1, "soon", "'soon' is not a time; expected 2026-10-01"),
    ],
)
def test_what_a_venue_does_not_have_is_refused(
    tmp_path: Path, rules: KisHistoryRules, timeframe: Timeframe, start: str, text: str
) -> None:
    catalogue, now = BarCatalogue(tmp_path), OPEN.timestamp()

    def plan() -> None:
        wanted = (parse_moment(start, rules.zone, OPEN), None)
        plan_download(rules, catalogue, ["A"], timeframe, wanted, now)

    with pytest.raises(RefusedError, match=text):
        plan()


def test_a_paper_key_has_days_and_the_minutes_of_today(tmp_path: Path) -> None:
    now = OPEN.timestamp() + 3600
    for timeframe, start in ((Timeframe.D1, "30 days ago"), (Timeframe.M1, "today")):
        wanted = (parse_moment(start, SEOUL, OPEN), None)
        rules = kis_rules(paper=True)
        plan = plan_download(rules, BarCatalogue(tmp_path), ["005930"], timeframe, wanted, now)
        assert plan.requests > 0
        assert plan.per_second == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-10-01", "2026-10-01T00:00:00+09:00"),
        ("2026-10-01T12:00", "2026-10-01T12:00:00+09:00"),
        ("2026-10-01T12:00Z", "2026-10-01T12:00:00+00:00"),
        ("30 days ago", "2026-10-17T00:00:00+09:00"),
        ("1 day ago", "2026-11-15T00:00:00+09:00"),
        ("yesterday", "2026-11-15T00:00:00+09:00"),
        ("today", "2026-11-16T00:00:00+09:00"),
        ("now", "2026-11-16T09:00:00+09:00"),
    ],
)
def test_times_are_those_of_the_market(text: str, expected: str) -> None:
    assert parse_moment(text, SEOUL, OPEN) == datetime.fromisoformat(expected).timestamp()
