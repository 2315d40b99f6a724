"""Daily report: its figures against the ledger, its days, its files and its command."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qts.brokers import open_account
from qts.cli.main import run_command
from qts.dashboard import DailyReport, load_report, parse_day, render_report_html
from qts.dashboard.daily_report import ReportSchedule, day_bounds
from qts.dashboard.report_page import generate_report, report_message, summary_line
from qts.dashboard.results import _fill, closed_trades
from qts.dashboard.run_records import RunCounts, RunSample, counted
from qts.database import Database
from qts.domain import AccountKey, ManualClock, RefusedError, Secret, Side
from qts.events import EventEngine
from qts.orders import PositionState
from qts.outbox import PostgresBus
from qts.risk import FailSafe
from tests.accounts import PAPER
from tests.orders.fake_venue import Venue
from tests.orders.kit import START, STREAMS, OrderKit

D = Decimal
DAY = date(2026, 11, 16)  # of START, 10:00 in Seoul
NEXT = DAY + timedelta(days=1)
_names = itertools.count()

steps = st.lists(
    st.tuples(
        st.sampled_from(["KRW-BTC", "KRW-ETH"]),
        st.sampled_from(Side),
        st.integers(1, 4),
        st.integers(90, 110),
        st.sampled_from([0, 0, 0, 5, 16]),  # hours to the next fill
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
async def test_the_figures_are_those_of_the_ledger(
    database: Database, steps: list[tuple[str, Side, int, int, int]]
) -> None:
    """Random fills over several days; positions may turn over."""
    clock = ManualClock(START)
    positions: dict[str, PositionState] = {}
    realised: Counter[tuple[date, str]] = Counter()
    fills: Counter[tuple[date, str]] = Counter()
    closed: Counter[tuple[date, str]] = Counter()
    async with PostgresBus.open(database, STREAMS) as bus:
        venue = Venue(clock, f"venue{next(_names)}")
        kit = OrderKit(database, bus, venue, clock, allow_short=True)
        await kit.open()
        for symbol, side, quantity, price, hours in steps:
            order = await kit.order(symbol=symbol, side=side, quantity=D(quantity), price=D(price))
            fill = venue.trade(order, D(quantity), D(price))
            await kit.context.ledger.record_fill(fill)
            before = positions.get(symbol, PositionState())
            after = positions[symbol] = before.apply(fill)
            key = ((fill.at + timedelta(hours=9)).date(), symbol)
            realised[key] += after.realised_pnl - before.realised_pnl - fill.fee  # type: ignore[assignment]
            fills[key] += 1
            closed[key] += bool(before.quantity) and before.quantity * after.quantity <= 0
            await clock.advance(hours * 3600 + 1)
    for day in {day for day, _ in fills}:
        report = await load_report(database, venue.key, day, clock.now())
        own = {symbol for at, symbol in fills if at == day}
        assert report.fills == sum(fills[day, symbol] for symbol in own)
        assert float(report.realised) == pytest.approx(
            float(sum(realised[day, symbol] for symbol in own)), abs=0.02
        )
        by_symbol = {group.name: group for group in report.symbols}
        assert by_symbol.keys() == own
        for symbol, group in by_symbol.items():
            assert group.fills == fills[day, symbol]
            assert float(group.realised) == pytest.approx(float(realised[day, symbol]), abs=0.02)
            assert group.trades == closed[day, symbol]
        assert [group.name for group in report.strategies] == ["scalper"]
        assert report.strategies[0].realised == report.realised
        assert "No trades" not in render_report_html(report)
    today = await load_report(
        database, venue.key, parse_day("today", now := datetime.now(UTC)), now
    )
    assert sum(today.attempts.values()) == sum(today.intents.values()) == len(steps)  # as stored
    quiet = await load_report(database, venue.key, DAY - timedelta(days=1), clock.now())
    assert (quiet.fills, quiet.realised, len(quiet.trades)) == (0, D(0), 0)


@given(
    st.lists(st.tuples(st.sampled_from(Side), st.integers(1, 5), st.integers(90, 110)), max_size=30)
)
def test_trades_of_a_flat_symbol_earn_what_its_fills_realised(
    steps: list[tuple[Side, int, int]],
) -> None:
    held, rows, state = D(0), list[dict[str, Any]](), PositionState()
    net = sum((side.sign * quantity for side, quantity, _ in steps), 0)
    if net:  # flat at the end
        steps = [*steps, (Side.SELL if net > 0 else Side.BUY, abs(net), 100)]
    for number, (side, quantity, price) in enumerate(steps):
        held += side.sign * quantity
        rows.append(
            {
                "trade_id": str(number),
                "broker_order_id": "1",
                "symbol": "X",
                "side": side.value,
                "quantity": D(quantity),
                "price": D(price),
                "fee": D(quantity) / 10,
                "traded_at": START + timedelta(seconds=number),
                "held": held,
                "strategy": "s",
                "intent_type": "ENTRY",
            }
        )
        state = state.apply(_fill(rows[-1]))
    trades = closed_trades(rows, START)
    fees = sum((row["fee"] for row in rows), D(0))
    total = sum((trade.profit for trade in trades), D(0))
    assert float(total) == pytest.approx(float(state.realised_pnl - fees), abs=1e-6)
    assert float(sum((trade.fees for trade in trades), D(0))) == pytest.approx(float(fees))


counts = st.builds(
    RunCounts,
    ticks=st.integers(0, 100),
    refusals=st.dictionaries(st.sampled_from(["G_CASH", "G_STALE_PRICE"]), st.integers(0, 9)),
)


@given(st.lists(st.lists(counts, min_size=1, max_size=5), max_size=3), st.integers(0, 400))
def test_a_day_has_what_its_runs_counted_in_it(
    runs: list[list[RunCounts]], minutes_before: int
) -> None:
    """Counts grow from sample to sample; the samples before the day do not belong to it."""
    began, samples = day_bounds(DAY)[0], list[RunSample]()
    ticks, refused = 0, Counter[str]()
    for number, growths in enumerate(runs):
        started = began + timedelta(days=number) - timedelta(minutes=minutes_before % 7)
        total = RunCounts()
        own = list[RunSample]()
        for minute, grown in enumerate(growths):
            codes = Counter(total.refusals) + Counter(grown.refusals)
            total = RunCounts(ticks=total.ticks + grown.ticks, refusals=dict(codes))
            at = started + timedelta(minutes=minute)
            own.append(
                RunSample(
                    started_at=started, taken_at=at, equity=D(1), cash=D(1), unrealised=D(0),
                    counts=total,
                )
            )  # fmt: skip
            if at >= began:
                ticks += grown.ticks
                refused.update(grown.refusals)
        before = [each for each in own if each.taken_at < began]
        inside = [each for each in own if each.taken_at >= began]
        samples += [*before[-1:], *inside] if inside else []
    found = counted(samples, began)
    assert found.ticks == ticks
    assert found.refusals == {code: count for code, count in refused.items() if count}


async def store_sample(database: Database, at: datetime, equity: int = 100, **more: Any) -> None:
    values = msgspec.to_builtins(RunCounts(**more))
    await database.execute(
        "INSERT INTO run_sample (broker, account, started_at, taken_at, equity, cash, unrealised,"
        " counts) VALUES ($1, $2, $3, $4, $5, 40, 3, $6)",
        *PAPER,
        START,
        at,
        D(equity),
        values,
    )


async def test_a_day_without_trades_says_so(database: Database, tmp_path: Path) -> None:
    await store_sample(
        database, START, 100, refusals={"G_CASH": 2}, p0_events=4, p0_p99_ms=1.5, streaming=True
    )
    await store_sample(
        database,
        START + timedelta(minutes=1),
        120,
        refusals={"G_CASH": 5},
        precheck_refusals={"G_DAY_LIMIT": 1},
        p0_events=9,
        ticks=7,
    )
    await open_account(database, PAPER, is_live=False)
    await FailSafe(database, PAPER).trip("FS070", "<b>differ</b>")
    today = parse_day("today", datetime.now(UTC))
    incident = await load_report(database, PAPER, today, datetime.now(UTC))
    assert [each.code for each in incident.incidents] == ["FS070"]
    assert "&lt;b&gt;differ" in render_report_html(incident)
    report = await generate_report(database, PAPER, DAY, tmp_path / "reports", START)
    page = (tmp_path / "reports" / f"{DAY}.html").read_text()
    assert "No trades on this day." in page
    assert "<script" not in page
    assert "G_DAY_LIMIT" in page
    stored = msgspec.json.decode((tmp_path / "reports" / f"{DAY}.json").read_bytes())
    assert stored["refusals"] == {"G_CASH": 5}
    assert stored["precheck_refusals"] == {"G_DAY_LIMIT": 1}
    assert (stored["equity_start"], stored["equity_end"]) == ("100.00", "120.00")
    assert (report.p0["events"], report.p0["p99_ms"], report.feed["ticks"]) == (9, 1.5, 7)
    assert report.feed["streaming_ratio"] == 0.5
    assert summary_line(report).startswith("no trades, equity 100 → 120 won")
    assert report_message(report).event_id == report_message(report).event_id
    assert (tmp_path / "reports" / f"{DAY}.json").stat().st_mode & 0o077 == 0


async def test_the_report_of_a_day_comes_after_its_midnight(
    database: Database, tmp_path: Path
) -> None:
    """A market that never closes: not before midnight in Seoul, then once."""
    clock = ManualClock(START)
    engine = EventEngine(clock=clock)
    schedule = ReportSchedule(database, PAPER, tmp_path, lambda day: day_bounds(day)[1], engine)
    ended = day_bounds(DAY)[1]
    assert await schedule.due(ended + timedelta(hours=1)) is None  # no run in that day
    await store_sample(database, START)
    assert await schedule.due(ended - timedelta(seconds=1)) is None
    after = ended + timedelta(minutes=3)
    assert await schedule.due(after) == DAY
    await generate_report(database, PAPER, DAY, tmp_path, after)
    assert await schedule.due(after) is None
    other = AccountKey.of("upbit", "other")  # its report of the same day is missing
    await database.execute("UPDATE run_sample SET broker = $1, account = $2", *other)
    of_other = ReportSchedule(database, other, tmp_path, lambda day: day_bounds(day)[1], engine)
    assert await of_other.due(after) == DAY


async def test_a_report_after_the_close_is_made_again_when_the_day_is_over(
    database: Database, tmp_path: Path
) -> None:
    close = START + timedelta(hours=5, minutes=30)
    engine = EventEngine(clock=ManualClock(START))
    closes = {DAY: close}
    schedule = ReportSchedule(database, PAPER, tmp_path, closes.get, engine)
    await store_sample(database, START)
    await store_sample(database, START + timedelta(days=1))  # a day without trading
    assert await schedule.due(close) is None
    made = close + timedelta(minutes=3)
    assert await schedule.due(made) == DAY
    await generate_report(database, PAPER, DAY, tmp_path, made)
    assert await schedule.due(made) is None
    later = day_bounds(DAY)[1] + timedelta(minutes=3)
    assert await schedule.due(later) == DAY
    await generate_report(database, PAPER, DAY, tmp_path, later)
    assert await schedule.due(later + timedelta(days=2)) is None


async def test_a_run_requests_the_report_once(database: Database, tmp_path: Path) -> None:
    clock = ManualClock(day_bounds(DAY)[1] + timedelta(minutes=3))
    engine, requested = EventEngine(clock=clock), list[str]()
    engine.on("REPORT_GENERATE", lambda event: requested.append(event.payload.data["day"]))
    await store_sample(database, START)
    schedule = ReportSchedule(database, PAPER, tmp_path, lambda day: day_bounds(day)[1], engine)
    with engine:
        for _ in range(3):
            schedule._request(DAY)
        assert await asyncio.to_thread(engine.wait_drained, 10.0)
        assert requested == [str(DAY)]
        await clock.advance(601)
        schedule._request(DAY)
        assert await asyncio.to_thread(engine.wait_drained, 10.0)
    assert requested == [str(DAY)] * 2


def test_days_are_those_of_seoul() -> None:
    now = datetime(2026, 11, 16, 15, 30, tzinfo=UTC)  # half past midnight in Seoul
    assert parse_day("today", now) == NEXT
    assert parse_day("yesterday", now) == DAY
    assert parse_day("2026-11-16", now) == DAY
    for text in ("2026-11-18", "tomorrow", "2026-13-01"):
        with pytest.raises(RefusedError, match="2026-11-17"):
            parse_day(text, now)


async def test_the_command_prints_and_writes(
    database: Database,
    database_url: Secret,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QTS_DATABASE__URL", database_url.reveal())
    monkeypatch.setenv("QTS_HOME", str(tmp_path / "home"))
    page, file = tmp_path / "r.html", tmp_path / "r.json"

    async def run(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run_command, ["report", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    code, out, _ = await run("2026-11-16", "--html", str(page), "--json", str(file))
    assert code == 0
    assert "no trades" in out
    report = msgspec.json.decode(file.read_bytes(), type=DailyReport)
    assert report.day == DAY
    assert "<svg" not in page.read_text()  # no run, no curve
    code, _, error = await run("yestreday")
    assert code == 2
    assert "'yestreday' is not a day; expected today, yesterday or a date such as" in error
    assert (await run("--html", str(tmp_path / "no" / "r.html")))[0] == 2
    assert (await run("today", "--account", "nobody"))[0] == 2


async def test_a_page_fits_a_phone(database: Database, browser: Any, tmp_path: Path) -> None:
    for minute in range(5):
        await store_sample(database, START + timedelta(minutes=minute), 100_000_000 + minute)
    await open_account(database, PAPER, is_live=False)
    for code in ("FS070", "FS040"):
        await FailSafe(database, PAPER).trip(code, "a long reason " * 20)
    await generate_report(database, PAPER, DAY, tmp_path, START)
    page = await browser.new_page(viewport={"width": 390, "height": 800})
    await page.goto(f"file://{tmp_path}/{DAY}.html")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    labels = await page.evaluate(
        "[...document.querySelectorAll('svg text')].map(each => each.getBoundingClientRect())"
        ".filter(box => box.width).map(box => [box.left, box.height])"
    )
    assert labels
    assert all(left >= 0 and height >= 9 for left, height in labels)
    await page.close()
