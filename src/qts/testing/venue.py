"""Suites of a venue as a whole and of its instruments."""

from __future__ import annotations

from typing import Any

from qts.brokers import Venue, VenueConnection
from qts.domain import Clock, Market
from qts.testing.fixtures import VenueFixtures
from qts.venues import BUILT_IN, Calendar, market_of_venue


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
