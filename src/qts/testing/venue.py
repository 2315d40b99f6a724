"""Suites of a venue as a whole, of its instruments and its calendar; fixtures of all suites."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.brokers import CalendarOptions, ConnectOptions, Venue, VenueConnection
from qts.domain import Clock, Market, SystemClock
from qts.venues import BUILT_IN, Calendar, market_of_venue


class VenueFixtures:
    """A subclass defines `venue` and `settings`, which lead to a simulator or a sandbox."""

    @pytest.fixture
    def venue(self) -> Venue[Any]:
        """The venue under test."""
        raise NotImplementedError("define a fixture `venue` that returns the venue under test")

    @pytest.fixture
    def settings(self) -> msgspec.Struct:
        """Settings that lead to a simulator or a sandbox."""
        raise NotImplementedError("define a fixture `settings` that returns venue.settings(...)")

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of the venue, if it is not that of the machine."""
        return SystemClock()

    @pytest.fixture
    def calendar(self, venue: Venue[Any], settings: Any) -> Calendar | None:
        """The calendar of the venue, None if it never closes."""
        return venue.calendar(settings, CalendarOptions())

    @pytest.fixture
    async def connection(
        self,
        venue: Venue[Any],
        settings: Any,
        clock: Clock,
        calendar: Calendar | None,
        tmp_path: Path,
    ) -> AsyncIterator[VenueConnection]:
        """A connection to the venue."""
        options = ConnectOptions(tmp_path, clock, calendar)
        async with venue.connect(settings, options) as connection:
            yield connection


class VenueSuite(VenueFixtures):
    """What is known without a connection, and that a connection agrees with it."""

    def test_its_settings_are_a_frozen_struct_with_defaults(self, venue: Venue[Any]) -> None:
        assert venue.settings.__struct_config__.frozen
        assert venue.settings.__struct_config__.forbid_unknown_fields
        assert venue.settings() == venue.settings()

    def test_it_says_whose_money_is_at_stake(self, venue: Venue[Any], settings: Any) -> None:
        assert venue.environment(settings) in ("real", "paper", "simulator")
        assert venue.environment(settings) != "real", "tests must not run with real money"

    def test_its_account_carries_its_name(self, venue: Venue[Any], settings: Any) -> None:
        assert venue.account(settings).broker == venue.name
        assert venue.account(settings) == venue.account(settings)

    def test_its_example_has_the_form_of_its_symbols(self, venue: Venue[Any]) -> None:
        assert venue.symbol_form.pattern.fullmatch(venue.symbol_form.example)

    async def test_a_connection_has_the_limits_that_were_announced(
        self, venue: Venue[Any], settings: Any, connection: VenueConnection
    ) -> None:
        data, limits = connection.data, venue.limits(settings, multi_quotes=True)
        assert data.limits == limits
        assert data.limiter.limits == limits.rates
        assert data.source.per_call == limits.per_call > 0
        assert limits.scan_s > 0
        assert (data.open_stream is not None) == (limits.streamed > 0)
        assert (data.indices is not None) == venue.has_indices

    async def test_a_connection_has_the_calendar_it_was_given(
        self, connection: VenueConnection, calendar: Calendar | None
    ) -> None:
        assert connection.data.calendar is calendar

    async def test_a_connection_previews_orders(self, connection: VenueConnection) -> None:
        assert connection.preview.can_test in (True, False)

    async def test_the_clocks_agree(self, connection: VenueConnection) -> None:
        assert connection.skew.is_synced()


class InstrumentSuite(VenueFixtures):
    """The list of what a venue trades."""

    async def test_the_list_is_that_of_the_venue(
        self, venue: Venue[Any], settings: Any, clock: Clock
    ) -> None:
        source = venue.instruments(settings, clock)
        listed = await source.fetch()
        assert source.venue == venue.name
        assert source.environment in ("real", "simulator")
        assert listed
        assert {each.venue for each in listed} == {venue.name}

    async def test_a_symbol_is_listed_once_in_the_form_of_the_venue(
        self, venue: Venue[Any], settings: Any, clock: Clock
    ) -> None:
        listed = await venue.instruments(settings, clock).fetch()
        symbols = [each.symbol for each in listed]
        assert len(set(symbols)) == len(symbols)
        form = venue.symbol_form.pattern
        assert [symbol for symbol in symbols if not form.fullmatch(symbol)] == []

    async def test_the_market_is_ours_only_for_our_venues(
        self, venue: Venue[Any], settings: Any, clock: Clock
    ) -> None:
        listed = await venue.instruments(settings, clock).fetch()
        is_ours = venue.name in BUILT_IN
        expected = market_of_venue(venue.name) if is_ours else Market.OTHER
        assert {each.market for each in listed} == {expected}

    async def test_prices_of_the_list_are_on_their_ticks(
        self, venue: Venue[Any], settings: Any, clock: Clock
    ) -> None:
        listed = await venue.instruments(settings, clock).fetch()
        priced = [each for each in listed if each.base_price is not None]
        off = [each.symbol for each in priced if not each.ticks.has(each.base_price or each.lot)]
        assert off == []

    async def test_something_can_be_bought(
        self, venue: Venue[Any], settings: Any, clock: Clock
    ) -> None:
        listed = await venue.instruments(settings, clock).fetch()
        assert any(not each.entry_block for each in listed)

    async def test_the_list_can_be_fetched_again(
        self, venue: Venue[Any], settings: Any, clock: Clock
    ) -> None:
        source = venue.instruments(settings, clock)
        first, second = await source.fetch(), await source.fetch()
        assert {each.symbol for each in first} == {each.symbol for each in second}


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
