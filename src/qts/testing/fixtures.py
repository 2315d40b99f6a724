"""Fixtures that the suites of a venue have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.brokers import CalendarOptions, ConnectOptions, Venue, VenueConnection
from qts.domain import Clock, SystemClock
from qts.venues import Calendar


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
