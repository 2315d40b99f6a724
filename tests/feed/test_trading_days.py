"""Trading days of KIS override the calendar and are fetched once a day."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from pathlib import Path

import pytest

from qts.domain import ManualClock, UnreachableError
from qts.feed import TradingCalendar
from qts.feed.calendar import TradingDaySync
from qts.venues import PublishedDays
from tests.feed.market import MONDAY_OPEN

MONDAY = date(2026, 11, 16)


async def test_days_are_fetched_once_and_kept_for_the_next_start(tmp_path: Path) -> None:
    asked: list[date] = []

    async def fetch(since: date) -> dict[date, bool]:
        asked.append(since)
        return {MONDAY: False}

    clock = ManualClock(MONDAY_OPEN)
    for _ in range(3):
        calendar = TradingCalendar()
        await TradingDaySync(
            tmp_path / "days.json", PublishedDays(fetch, calendar.set_trading_day), clock
        ).sync()
        assert not calendar.trades_on(MONDAY)
    assert asked == [MONDAY]
    clock.set_wall(MONDAY_OPEN + timedelta(days=1))
    await TradingDaySync(
        tmp_path / "days.json", PublishedDays(fetch, TradingCalendar().set_trading_day), clock
    ).sync()
    assert asked == [MONDAY, MONDAY + timedelta(days=1)]


async def test_without_a_reply_the_table_applies_and_the_fetch_is_retried(tmp_path: Path) -> None:
    asked = 0

    async def fetch(_since: date) -> dict[date, bool]:
        nonlocal asked
        asked += 1
        raise UnreachableError("no answer")

    clock, calendar = ManualClock(MONDAY_OPEN), TradingCalendar()
    days = TradingDaySync(
        tmp_path / "days.json", PublishedDays(fetch, calendar.set_trading_day), clock
    )
    task = asyncio.create_task(days.run())
    await clock.advance(1500.0)
    task.cancel()
    await asyncio.wait({task})
    assert asked == 3
    assert calendar.trades_on(MONDAY)


async def test_on_a_full_disk_the_reply_is_used_and_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[date] = []

    async def fetch(since: date) -> dict[date, bool]:
        asked.append(since)
        return {MONDAY: False}

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    clock, calendar = ManualClock(MONDAY_OPEN), TradingCalendar()
    task = asyncio.create_task(
        TradingDaySync(
            tmp_path / "d.json", PublishedDays(fetch, calendar.set_trading_day), clock
        ).run()
    )
    await clock.advance(1500.0)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
    assert not calendar.trades_on(MONDAY)
    assert asked == [MONDAY]
    assert "not saved" in capsys.readouterr().err
