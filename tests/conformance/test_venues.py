"""Our venues on their simulators: the port, instruments, calendar, market data and past bars."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from qts.app.kis_venue import KisVenue
from qts.app.upbit_venue import UpbitVenue
from qts.domain import Clock, ManualClock
from qts.simulators import (
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    RequestLimits,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from qts.testing import CalendarSuite, HistorySuite, InstrumentSuite, QuoteSuite, VenueSuite
from qts.venues import KisConfig, UpbitConfig
from tests.conformance.venues import MORNING, ClientClock, kis_config, upbit_config

LISTED = MarketConfig(symbols=20, suspended=2, start=MORNING, speed=10)
NO_LIMITS = RequestLimits(second=0, minute=0, day=0)
MANY: dict[str, Any] = dict.fromkeys(
    ("order_second", "default_second", "quotation_second"), 100_000
)


class Kis:
    """KIS on a simulator that runs by itself."""

    @pytest.fixture
    def venue(self) -> KisVenue:
        return KisVenue()

    @pytest.fixture
    async def settings(self) -> AsyncIterator[KisConfig]:
        config = KisSimulatorConfig(market=LISTED, limits=NO_LIMITS)
        async with KisSimulator(config) as simulator:
            yield kis_config(simulator.url)

    @pytest.fixture
    def unknown(self) -> str:
        return "999999"


class Upbit:
    """Upbit on a simulator that runs by itself."""

    @pytest.fixture
    def venue(self) -> UpbitVenue:
        return UpbitVenue()

    @pytest.fixture
    async def settings(self) -> AsyncIterator[UpbitConfig]:
        config = UpbitSimulatorConfig(market=LISTED, **MANY)
        async with UpbitSimulator(config) as simulator:
            yield upbit_config(simulator)

    @pytest.fixture
    def unknown(self) -> str:
        return "KRW-GONE"


class Still:
    """Clock of the machine's requests, with a wall clock that stands still."""

    @pytest.fixture
    def wall(self) -> ManualClock:
        return ManualClock(MORNING)

    @pytest.fixture
    def clock(self, wall: ManualClock) -> Clock:
        return ClientClock(wall)


class StillKis(Still, Kis):
    @pytest.fixture
    async def settings(self, wall: ManualClock) -> AsyncIterator[KisConfig]:
        market = MarketConfig(symbols=20, suspended=0, start=MORNING)
        config = KisSimulatorConfig(market=market, limits=NO_LIMITS)
        async with KisSimulator(config, wall) as simulator:
            yield kis_config(simulator.url)


class StillUpbit(Still, Upbit):
    @pytest.fixture
    async def settings(self, wall: ManualClock) -> AsyncIterator[UpbitConfig]:
        market = MarketConfig(symbols=20, suspended=0, start=MORNING)
        async with UpbitSimulator(UpbitSimulatorConfig(market=market, **MANY), wall) as simulator:
            yield upbit_config(simulator)


class TestKisVenue(Kis, VenueSuite):
    pass


class TestUpbitVenue(Upbit, VenueSuite):
    pass


class TestKisInstruments(Kis, InstrumentSuite):
    pass


class TestUpbitInstruments(Upbit, InstrumentSuite):
    pass


class TestKisCalendar(Kis, CalendarSuite):
    @pytest.fixture
    def settings(self) -> KisConfig:
        return KisConfig()


class TestKisQuotes(Kis, QuoteSuite):
    pass


class TestKisPaperQuotes(Kis, QuoteSuite):
    """A paper key quotes one symbol per request."""

    @pytest.fixture
    async def settings(self) -> AsyncIterator[KisConfig]:
        config = KisSimulatorConfig(market=LISTED, limits=NO_LIMITS, paper=True)
        async with KisSimulator(config) as simulator:
            yield kis_config(simulator.url, paper=True)


class TestUpbitQuotes(Upbit, QuoteSuite):
    pass


class TestKisHistory(StillKis, HistorySuite):
    pass


class TestUpbitHistory(StillUpbit, HistorySuite):
    pass
