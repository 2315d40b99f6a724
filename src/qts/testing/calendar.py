"""Suite of a venue's calendar: a year of sessions, sampled at odd minutes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest

from qts.testing.fixtures import VenueFixtures
from qts.venues import Calendar

FIRST = date(2026, 1, 1)
DAYS = [FIRST + timedelta(days=n) for n in range(366)]


def moments() -> Iterator[datetime]:
    """Yield moments of a year at every hour and minute."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(3000):
        yield at
        at += timedelta(minutes=173)


class CalendarSuite(VenueFixtures):
    """For a venue whose market closes; one that never does has no calendar."""

    @pytest.fixture
    def hours(self, calendar: Calendar | None) -> Calendar:
        """The calendar of the venue."""
        assert calendar is not None, "the market never closes: leave this suite out"
        return calendar

    def test_a_day_trades_if_it_has_sessions(self, hours: Calendar) -> None:
        wrong = [day for day in DAYS if hours.trades_on(day) != bool(hours.sessions(day))]
        assert wrong == []

    def test_sessions_are_in_order_and_do_not_overlap(self, hours: Calendar) -> None:
        found = [each for day in DAYS for each in hours.sessions(day)]
        assert found, "no session in a year"
        assert all(each.opens_at.tzinfo is not None for each in found)
        assert all(each.opens_at < each.closes_at for each in found)
        assert all(one.closes_at <= other.opens_at for one, other in pairwise(found))

    def test_the_open_session_contains_the_moment(self, hours: Calendar) -> None:
        sessions = [(now, hours.current(now)) for now in moments()]
        found = [(now, session) for now, session in sessions if session is not None]
        assert found, "never open in a year"
        for now, session in found:
            assert session.opens_at <= now < session.closes_at
            assert hours.next_open(now) == session
            assert hours.seconds_left(now) >= (session.closes_at - now).total_seconds()

    def test_a_closed_market_opens_at_the_next_session(self, hours: Calendar) -> None:
        for now in moments():
            if hours.current(now) is None:
                session = hours.next_open(now)
                assert session.opens_at > now
                assert hours.current(session.opens_at) == session
                between = now + (session.opens_at - now) / 2
                assert hours.current(between) is None

    def test_a_day_ends_with_its_last_session(self, hours: Calendar) -> None:
        for day in DAYS:
            closes_at = hours.closes_at(day)
            assert (closes_at is None) == (not hours.trades_on(day))
            if closes_at is not None:
                assert closes_at in [each.closes_at for each in hours.sessions(day)]
                assert hours.current(closes_at) is None
