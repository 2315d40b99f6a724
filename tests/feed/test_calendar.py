"""When KRX trades."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from qts.domain import RefusedError
from qts.feed import SEOUL, TradingCalendar


def _hours(calendar: TradingCalendar, day: date) -> dict[str, str]:
    def seoul(moment: datetime) -> str:
        return f"{moment.astimezone(SEOUL):%H:%M}"

    return {
        each.name: f"{seoul(each.opens_at)}-{seoul(each.closes_at)}"
        for each in calendar.sessions(day)
    }


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=SEOUL)


@pytest.mark.parametrize(
    ("day", "trades"),
    [
        (date(2026, 11, 16), True),
        (date(2026, 11, 15), False),  # a Sunday
        (date(2026, 6, 3), False),  # local elections
        (date(2026, 7, 17), False),  # Constitution Day
        (date(2026, 12, 31), False),  # the year's last day
        (date(2027, 7, 19), False),  # its substitute
        (date(2026, 1, 2), True),
    ],
)
def test_known_days(day: date, trades: bool) -> None:
    assert TradingCalendar().trades_on(day) is trades
    assert bool(TradingCalendar().sessions(day)) is trades


def test_an_ordinary_day_has_its_sessions_in_order() -> None:
    assert _hours(TradingCalendar(), date(2026, 11, 16)) == {
        "opening auction": "08:30-09:00",
        "regular": "09:00-15:30",
        "after-market": "16:00-20:00",
    }


def test_there_is_no_after_market_before_it_was_opened() -> None:
    assert "after-market" not in _hours(TradingCalendar(), date(2026, 9, 11))
    assert "after-market" in _hours(TradingCalendar(), date(2026, 9, 14))


def test_the_first_trading_day_opens_an_hour_late_and_closes_as_ever() -> None:
    assert _hours(TradingCalendar(), date(2026, 1, 2))["regular"] == "10:00-15:30"
    assert _hours(TradingCalendar(), date(2026, 1, 5))["regular"] == "09:00-15:30"
    assert _hours(TradingCalendar(), date(2027, 1, 4))["regular"] == "10:00-15:30"


def test_the_examination_day_is_an_hour_later() -> None:
    assert _hours(TradingCalendar(), date(2026, 11, 19))["regular"] == "10:00-16:30"


def test_what_is_left_of_today() -> None:
    calendar = TradingCalendar()
    assert calendar.seconds_left(_at("2026-11-16 08:00")) == 6.5 * 3600
    assert calendar.seconds_left(_at("2026-11-16 15:00")) == 1800
    assert calendar.seconds_left(_at("2026-11-16 15:30")) == 0
    assert TradingCalendar(after_market=True).seconds_left(_at("2026-11-16 15:30")) == 4 * 3600


def test_the_next_session_after_a_weekend() -> None:
    calendar = TradingCalendar()
    friday_evening = _at("2026-11-13 18:00")
    assert calendar.current(friday_evening) is None
    opens_at = calendar.next_open(friday_evening).opens_at
    assert opens_at == datetime(2026, 11, 16, 0, 0, tzinfo=UTC)
    assert calendar.current(opens_at) is not None
    assert calendar.current(opens_at - timedelta(seconds=1)) is None


def test_the_venue_overrides_the_calendar() -> None:
    calendar = TradingCalendar()
    calendar.set_trading_day(date(2026, 11, 16), False)
    assert not calendar.sessions(date(2026, 11, 16))
    calendar.set_trading_day(date(2026, 11, 15), True)
    assert calendar.sessions(date(2026, 11, 15))


def test_overrides_close_days_and_change_hours(tmp_path: Path) -> None:
    file = tmp_path / "days.toml"
    file.write_text(
        "[[day]]\ndate = 2026-11-17\nclosed = true\n"
        "[[day]]\ndate = 2026-11-18\n"
        'sessions = [{ name = "regular", opens = 11:00:00, closes = 12:00:00 }]\n'
    )
    calendar = TradingCalendar(file)
    assert not calendar.trades_on(date(2026, 11, 17))
    assert _hours(calendar, date(2026, 11, 18))["regular"] == "11:00-12:00"


@pytest.mark.parametrize("text", ["[[day]]\nclosed = true\n", "day = 1\n", "[[", "x = 1\n"])
def test_a_wrong_overrides_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "days.toml"
    file.write_text(text)
    with pytest.raises(RefusedError, match=r"feed\.calendar_overrides, .*days\.toml"):
        TradingCalendar(file)
