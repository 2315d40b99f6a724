"""The venues of a run or a command: connection, feed, past bars, and the broker of its orders."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from qts import telemetry
from qts.app.account_configs import SimulatedVenue, uses_simulated_venue
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
from qts.domain import Clock, Instruments, OperationError, RefusedError, check_name
from qts.embedded import Home
from qts.feed import (
    Feed,
    FeedCallbacks,
    InstrumentStore,
    InstrumentSync,
    PriceFeed,
    ScanPlan,
    TradingCalendar,
    check_distinct,
    plan_scan_offline,
    pyarrow_module,
    read_symbols,
    symbols_by_venue,
)
from qts.history import BarCatalogue, RecentBars
from qts.roles import RemoteFeed, RoleConnection
from qts.strategies import Strategy, bar_subscription
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
    def open_hours(self) -> Calendar | None:
        """The calendar that applies; None for a market that never closes, or a simulator."""
        return None if self.config.feed.always_open else self.calendar

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
    feed: PriceFeed
    broker: Broker
    skew: ClockSkew
    history: BarHistory


class FeedSource(NamedTuple):
    """What takes the ticks of a feed, and its symbols; None: all of feed.symbols.

    With `roles` the ticks are those of the feed role, in another process.
    """

    callbacks: FeedCallbacks
    symbols: list[str] | None = None
    roles: RoleConnection | None = None


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
        callbacks, symbols, roles = source
        attached = (connection.data, config.feed, home, clock, instruments)
        opening: contextlib.AbstractContextManager[PriceFeed]
        if roles is None:
            opening = Feed.attach(*attached, callbacks=callbacks, symbols=symbols)
        else:
            opening = contextlib.nullcontext(remote_feed(roles, config, callbacks, clock))
        with opening as feed:
            broker: Broker | None = paper
            if broker is None:
                options = BrokerOptions(database, config.brokers, instruments)
                broker = connection.broker(options)
                require_live_consent(config.brokers, chosen.venue.name, environment)
            connection.skew.max_s = config.venues.max_skew_s
            yield ConnectedVenue(feed, broker, connection.skew, connection.history)


def remote_feed(
    roles: RoleConnection, config: Config, callbacks: FeedCallbacks, clock: Clock
) -> RemoteFeed:
    """Return the feed that another process publishes."""
    calendar = ChosenVenue.of(config).open_hours
    return RemoteFeed(roles, config.feed.venue_name, calendar, callbacks, clock)


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


class WatchedVenue(Protocol):
    """What decides which symbols of feed.symbols are watched at a venue."""

    @property
    def venue(self) -> str: ...
    @property
    def alone(self) -> bool: ...
    @property
    def instruments(self) -> Instruments: ...
    @property
    def config(self) -> Config: ...


def watched_symbols(venues: Sequence[WatchedVenue]) -> dict[str, list[str]]:
    """Return the symbols to watch at each venue of a run."""
    listed = {each.venue: each.instruments for each in venues}
    files = {each.config.feed.symbols for each in venues}
    if len(files) == 1 and len(listed) > 1:
        return symbols_by_venue(files.pop(), listed)
    found: dict[str, list[str]] = {}
    for each in venues:
        path = each.config.feed.symbols
        if each.alone:
            found[each.venue] = read_symbols(path)
        else:
            found |= symbols_by_venue(path, {each.venue: each.instruments})
    check_distinct(listed)
    return found


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


def history_rules(config: Config, venue: str) -> HistoryRules:
    """Return what the venue offers with the key of the settings."""
    return ChosenVenue.of(config, venue).history_rules


def trading_calendar(config: Config) -> TradingCalendar:
    return TradingCalendar(config.feed.calendar_overrides)


def history_is_simulated(config: Config, venue: str) -> bool:
    """Return whether the bars come from a simulator: ours, or one at venues.*.url."""
    return _starts_simulator(config, venue) or history_rules(config, venue).simulated


def recent_bars(config: Config, history: BarHistory, home: Path, clock: Clock) -> RecentBars:
    """Return the reader of the bars before a run, with the client of the run.

    `home` is the folder of the catalogue. That of a simulator which the run starts itself ends with
    it: the next one has another past.
    """
    venue = config.feed.venue_name
    catalogue = BarCatalogue(home, simulated=history_is_simulated(config, venue))
    return RecentBars(history_rules(config, venue), history, catalogue, clock)


def has_catalogue(strategies: Iterable[Strategy[Any]]) -> bool:
    """Return whether the bars of a warm-up can be stored; log why not if one needs them."""
    if not any(bar_subscription(each).warm_up for each in strategies):
        return False
    try:
        pyarrow_module("pyarrow.parquet")
    except RefusedError as error:
        log.warning("no catalogue; strategies collect their warm-up live", reason=str(error))
        return False
    return True


@contextlib.asynccontextmanager
async def connect_history(
    config: Config, venue: str, home: Path, clock: Clock, symbols: Sequence[str]
) -> AsyncIterator[BarHistory]:
    """Connect to the venue; refuse symbols that it does not list, where it has a list."""
    async with contextlib.AsyncExitStack() as stack:
        chosen = ChosenVenue.of(config, venue)
        if _starts_simulator(config, venue):
            # Its own folder: a run on this home may have a simulator too.
            own = Home.at(home / "download")
            own.create_directories()
            # As if it took orders: a clock that is ours, so that its past ends now.
            simulator = stack.enter_context(
                SimulatedVenue(own, config.simulator, venue, takes_orders=True)
            )
            chosen = chosen._replace(
                settings=simulator.venue_settings(chosen.settings, own_limits=False)
            )
            home = simulator.keys
        history = (await stack.enter_async_context(chosen.connect(home, clock))).history
        if (listed := await history.symbols()) is not None:
            for symbol in symbols:
                check_name(f"{chosen.venue.title} symbol", symbol, listed)
        yield history


def _starts_simulator(config: Config, venue: str) -> bool:
    feed = msgspec.structs.replace(config.feed, venue=venue)
    return uses_simulated_venue(msgspec.structs.replace(config, feed=feed))
