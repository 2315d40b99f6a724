"""The venues of a run: for each one connection, the feed on it, and the broker of its orders."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qts import telemetry
from qts.brokers import (
    Broker,
    BrokerOptions,
    CalendarOptions,
    ConnectOptions,
    Venue,
    VenueConnection,
    require_live_consent,
    venue_of,
    venue_settings,
)
from qts.brokers.paper import PaperBroker
from qts.config import Config
from qts.database import Database
from qts.domain import Clock, Instruments, OperationError
from qts.feed import (
    Feed,
    FeedCallbacks,
    InstrumentStore,
    InstrumentSync,
    ScanPlan,
    plan_scan_offline,
    read_symbols,
)
from qts.venues import BarHistory, Calendar, ClockSkew, HistoryRules, InstrumentSource

log = telemetry.logger("app")


class ChosenVenue(NamedTuple):
    """A venue with the settings that it is used with."""

    venue: Venue[Any]
    settings: msgspec.Struct
    config: Config

    @classmethod
    def of(cls, config: Config, name: str | None = None) -> ChosenVenue:
        """Return the venue of a name, by default that of the account."""
        venue = venue_of(name or config.feed.venue_name)
        return cls(venue, venue_settings(config.venues, venue), config)

    @property
    def environment(self) -> str:
        return self.venue.environment(self.settings)

    @property
    def calendar(self) -> Calendar | None:
        feed = self.config.feed
        options = CalendarOptions(feed.calendar_overrides, feed.after_market, feed.always_open)
        return self.venue.calendar(self.settings, options)

    @property
    def history_rules(self) -> HistoryRules:
        return self.venue.history(self.settings, self.calendar)

    def instruments(self, clock: Clock) -> InstrumentSource:
        return self.venue.instruments(self.settings, clock)

    def connect(
        self, home: Path, clock: Clock
    ) -> contextlib.AbstractAsyncContextManager[VenueConnection]:
        """Connect; `home` holds the API token."""
        takes_orders = self.config.brokers.names == (self.venue.name,)
        multi = self.config.feed.multi_quotes
        options = ConnectOptions(home, clock, self.calendar, takes_orders, multi)
        return self.venue.connect(self.settings, options)


class ConnectedVenue(NamedTuple):
    feed: Feed
    broker: Broker
    skew: ClockSkew
    history: BarHistory


class FeedSource(NamedTuple):
    """What takes the ticks of a feed, and its symbols; None: all of feed.symbols."""

    callbacks: FeedCallbacks
    symbols: list[str] | None = None


@contextlib.asynccontextmanager
async def connect_venue(
    config: Config,
    database: Database,
    clock: Clock,
    home: Path,
    instruments: Instruments,
    source: FeedSource,
    paper: PaperBroker | None,
) -> AsyncIterator[ConnectedVenue]:
    """Connect feed and broker; `home` holds the API token.

    `paper` is the broker where the settings say so, else orders go to the venue.
    """
    chosen = ChosenVenue.of(config)
    environment = chosen.environment
    read_symbols(config.feed.symbols)  # a common mistake: refused before a token is requested
    async with chosen.connect(home, clock) as connection:
        callbacks, symbols = source
        attached = (connection.data, config.feed, home, clock, instruments)
        with Feed.attach(*attached, callbacks=callbacks, symbols=symbols) as feed:
            broker: Broker | None = paper
            if broker is None:
                options = BrokerOptions(database, config.brokers, instruments)
                broker = connection.broker(options)
                require_live_consent(config.brokers, chosen.venue.name, environment)
            connection.skew.max_s = config.venues.max_skew_s
            yield ConnectedVenue(feed, broker, connection.skew, connection.history)


@contextlib.asynccontextmanager
async def open_paper_broker(
    config: Config, database: Database, clock: Clock, instruments: Instruments
) -> AsyncIterator[PaperBroker | None]:
    """Open the paper broker; None where the settings name a venue's."""
    brokers = config.brokers
    if brokers.names != ("paper",):
        yield None
        return
    opening = PaperBroker.open(database, brokers.paper, brokers.costs, instruments, clock)
    async with opening as paper:
        yield paper


@contextlib.asynccontextmanager
async def observe_venue(config: Config, home: Path, clock: Clock) -> AsyncIterator[Feed]:
    """Open the feed of one venue with exclusive use of its key; no orders."""
    chosen = ChosenVenue.of(config)
    read_symbols(config.feed.symbols)
    async with chosen.connect(home, clock) as connection:
        try:
            instruments = Instruments(await chosen.instruments(clock).fetch())
        except OperationError as error:
            log.warning("instruments not fetched; symbols not checked", error=str(error))
            instruments = Instruments()
        with Feed.attach(connection.data, config.feed, home, clock, instruments) as feed:
            yield feed


def plan_observation(config: Config, symbols: int, clock: Clock, held: int) -> ScanPlan:
    """Plan the scan of so many symbols without a request; `held` is that of a run."""
    chosen, feed = ChosenVenue.of(config), config.feed
    limits = chosen.venue.limits(chosen.settings, multi_quotes=feed.multi_quotes)
    return plan_scan_offline(limits, chosen.calendar, feed, symbols, clock.now(), held)


def instrument_sync(
    config: Config, database: Database, clock: Clock, home: Path, instruments: Instruments
) -> InstrumentSync:
    """Return the refresh of the instruments of the run's venue; records get a catalogue file."""
    source = ChosenVenue.of(config).instruments(clock)
    records = config.feed.record_dir
    folders = (home, records) if config.feed.record and records is not None else (home,)
    return InstrumentSync(InstrumentStore(database), source, instruments, clock, folders)
