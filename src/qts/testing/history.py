"""Suite of a venue's past bars: what it announces, and what its pages hold."""

from __future__ import annotations

from typing import Any

import pytest

from qts.brokers import Venue, VenueConnection
from qts.domain import Bar, Clock, Timeframe
from qts.testing.fixtures import VenueFixtures
from qts.venues import BUILT_IN, BarHistory, Calendar, HistoryRules, market_of_venue

BARS = 450  # several pages at most venues
OFFERED = (Timeframe.M1, Timeframe.D1)


async def read(
    history: BarHistory, symbol: str, timeframe: Timeframe, start: float, end: float
) -> tuple[list[Bar], int]:
    """Return the bars of (start, end], read page by page as a download does, and the pages."""
    found: list[Bar] = []
    pages = 0
    while end > start:
        page = await history.page(symbol, timeframe, start, end)
        pages += 1
        assert start <= page.start < end, "a page begins in the range and before its end"
        assert all(page.start < bar.at <= end for bar in page.bars), "bars outside of their page"
        found = page.bars + found
        end = page.start
    return found, pages


@pytest.mark.parametrize("timeframe", OFFERED)
class HistorySuite(VenueFixtures):
    """Bars of one minute and one day."""

    @pytest.fixture
    def rules(self, venue: Venue[Any], settings: Any, calendar: Calendar | None) -> HistoryRules:
        """What the venue announces about its past bars."""
        return venue.history(settings, calendar)

    @pytest.fixture
    def history(self, connection: VenueConnection) -> BarHistory:
        """The past bars of the connection."""
        return connection.history

    @pytest.fixture
    def symbol(self, venue: Venue[Any]) -> str:
        """A symbol that has traded all the time; a subclass may choose another."""
        return venue.symbol_form.example

    @pytest.fixture
    def period(
        self, rules: HistoryRules, timeframe: Timeframe, clock: Clock
    ) -> tuple[float, float]:
        """Start and end of the latest `BARS` bars, or of all that are offered."""
        now = clock.now().timestamp()
        end = rules.latest(timeframe, now)
        earliest = rules.earliest(timeframe, now).at
        return max(earliest, rules.start(timeframe, BARS, end)), end

    def test_it_announces_what_it_offers(
        self, venue: Venue[Any], rules: HistoryRules, clock: Clock, timeframe: Timeframe
    ) -> None:
        now = clock.now().timestamp()
        earliest, latest = rules.earliest(timeframe, now), rules.latest(timeframe, now)
        is_ours = venue.name in BUILT_IN
        assert rules.market == (market_of_venue(venue.name) if is_ours else venue.name)
        assert rules.per_second > 0
        assert earliest.at < latest <= now
        assert earliest.reason
        assert rules.start(timeframe, 10, latest) <= rules.start(timeframe, 5, latest) < latest
        assert rules.requests(timeframe, latest - 86_400, latest) >= 1

    async def test_it_lists_a_symbol_that_has_bars(
        self, history: BarHistory, symbol: str, timeframe: Timeframe
    ) -> None:
        listed = await history.symbols()
        assert listed is None or symbol in listed, timeframe

    async def test_pages_hold_every_bar_once_in_order_of_time(
        self,
        rules: HistoryRules,
        history: BarHistory,
        symbol: str,
        timeframe: Timeframe,
        period: tuple[float, float],
    ) -> None:
        found, pages = await read(history, symbol, timeframe, *period)
        at = [bar.at for bar in found]
        assert len(found) >= BARS // 2
        assert at == sorted(set(at))
        assert pages <= rules.requests(timeframe, *period), "more requests than announced"
        assert {(bar.symbol, bar.timeframe) for bar in found} == {(symbol, timeframe)}
        if timeframe is Timeframe.M1:
            assert all(moment % timeframe.seconds == 0 for moment in at)

    async def test_a_range_read_in_two_parts_is_the_same(
        self,
        history: BarHistory,
        symbol: str,
        timeframe: Timeframe,
        period: tuple[float, float],
    ) -> None:
        whole, _ = await read(history, symbol, timeframe, *period)
        middle = whole[len(whole) // 2].at
        older, _ = await read(history, symbol, timeframe, period[0], middle)
        newer, _ = await read(history, symbol, timeframe, middle, period[1])
        assert older + newer == whole

    async def test_prices_of_a_bar_fit_together(
        self,
        history: BarHistory,
        symbol: str,
        timeframe: Timeframe,
        period: tuple[float, float],
    ) -> None:
        for bar in (await read(history, symbol, timeframe, *period))[0]:
            assert 0 < bar.low <= min(bar.open, bar.close), bar
            assert max(bar.open, bar.close) <= bar.high, bar
            assert bar.volume > 0, bar

    async def test_no_bar_is_still_open(
        self,
        rules: HistoryRules,
        history: BarHistory,
        symbol: str,
        clock: Clock,
        timeframe: Timeframe,
    ) -> None:
        now = clock.now().timestamp()
        end = rules.latest(timeframe, now)
        page = await history.page(symbol, timeframe, rules.start(timeframe, 5, end), now)
        assert all(bar.at <= now for bar in page.bars)
