"""Port of a venue: everything that QTS needs of a place with market data and orders.

    Venue, chosen by its name          known without a connection
      ├─ settings, environment, account    table [venues.NAME], whose money, which account
      ├─ instruments, calendar, limits     what is listed, when it trades, what it allows
      ├─ history                           which past bars it offers
      ├─ simulator                         a stand-in while the settings have no key
      └─ connect ──▶ VenueConnection       data (quotes, stream), history, skew, broker, preview

An adapter implements both; `qts.testing` has a conformance suite for each part.
"""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from qts.brokers.broker import Broker
from qts.brokers.config import BrokersConfig, paper_account
from qts.database import Database
from qts.domain import AccountKey, Clock, Instruments, OrderRequest, RefusedError
from qts.venues import (
    BarHistory,
    Calendar,
    ClockSkew,
    HistoryRules,
    InstrumentSource,
    MarketData,
    VenueLimits,
    VenuesConfig,
    describe_venue,
    load_venue,
)

S = TypeVar("S", bound=msgspec.Struct)


class SymbolForm(NamedTuple):
    """How symbols of a venue are written."""

    pattern: re.Pattern[str]
    example: str


class CalendarOptions(NamedTuple):
    """Settings of the feed that a calendar depends on."""

    overrides: Path | None = None  # file of days with special hours
    after_market: bool = False
    every_day: bool = False  # of a simulator that is always open


class ConnectOptions(NamedTuple):
    """What a connection depends on besides the settings of the venue."""

    home: Path  # folder of tokens and usage logs
    clock: Clock
    calendar: Calendar | None
    takes_orders: bool = False  # False: nothing may be signed with the key of an account
    multi_quotes: bool = True  # several symbols per request, where that is optional


class BrokerOptions(NamedTuple):
    """What a broker depends on besides its connection."""

    database: Database
    config: BrokersConfig
    instruments: Instruments


class OrderPreview(Protocol):
    """Checks of an order by its venue that place nothing; `qts rehearse` makes them first."""

    @property
    def can_test(self) -> bool:
        """Whether the venue checks a whole order without placing it."""
        ...

    async def buying_power(self, request: OrderRequest) -> Decimal:
        """Return the won that the account may spend on the buy."""
        ...

    async def test(self, request: OrderRequest) -> None:
        """Let the venue check the order; raise VenueRejectedError if it would reject it."""
        ...


class VenueConnection(Protocol):
    """A connected venue."""

    @property
    def data(self) -> MarketData: ...
    @property
    def history(self) -> BarHistory: ...
    @property
    def skew(self) -> ClockSkew: ...
    @property
    def preview(self) -> OrderPreview: ...

    def broker(self, options: BrokerOptions) -> Broker:
        """Return the broker of the account in the settings, once."""
        ...


class SimulatorOptions(NamedTuple):
    """How a simulator is started."""

    port: int
    seed: int
    speed: float
    symbols: int
    takes_orders: bool


class VenueSimulator(Protocol[S]):
    """A local server in place of a venue, in a separate process.

    The program prints the address of its REST interface and of its WebSocket once it serves, has
    `/_control/symbols` and ends with SIGINT.
    """

    @property
    def own_scan(self) -> bool:
        """Whether simulator.scan_s replaces the scan interval of the venue."""
        ...

    def is_needed(self, settings: S) -> bool:
        """Return whether the settings name neither a key nor a host."""
        ...

    def is_used(self, settings: S) -> bool:
        """Return whether the settings have a key that only the simulator takes."""
        ...

    def command(self, options: SimulatorOptions) -> list[str]:
        """Return the arguments of the Python interpreter that runs it."""
        ...

    def settings(self, settings: S, url: str, stream_url: str, *, own_limits: bool) -> S:
        """Return the settings with its addresses, keys and, if `own_limits`, its rate limits."""
        ...


class Venue(Protocol[S]):
    """A venue by name; holds no connection. Methods raise RefusedError for bad settings."""

    @property
    def name(self) -> str:
        """Name in feed.venue and brokers.broker, of the table [venues.NAME] and of accounts."""
        ...

    @property
    def title(self) -> str:
        """Name for readers."""
        ...

    @property
    def settings(self) -> type[S]:
        """Frozen struct of the table [venues.NAME], with a default for every key."""
        ...

    @property
    def symbol_form(self) -> SymbolForm: ...
    @property
    def has_indices(self) -> bool:
        """Whether it has index prices; else feed.index_symbol may stand for them."""
        ...

    @property
    def simulator(self) -> VenueSimulator[S] | None: ...

    def environment(self, settings: S) -> str:
        """Return real, paper or simulator: only `real` moves money.

        Refuse settings that mix them, such as quotes of a simulator and ticks of the venue.
        """
        ...

    def account(self, settings: S) -> AccountKey:
        """Return the account that takes orders; its broker is the venue's name."""
        ...

    def instruments(self, settings: S, clock: Clock) -> InstrumentSource: ...

    def calendar(self, settings: S, options: CalendarOptions) -> Calendar | None:
        """Return when it trades; None: its market never closes."""
        ...

    def limits(self, settings: S, *, multi_quotes: bool) -> VenueLimits: ...
    def history(self, settings: S, calendar: Calendar | None) -> HistoryRules: ...

    def connect(
        self, settings: S, options: ConnectOptions
    ) -> AbstractAsyncContextManager[VenueConnection]: ...


_PORT = sorted(set(dir(Venue)) - set(dir(Protocol)) - {"__parameters__"})


def venue_of(name: str) -> Venue[Any]:
    """Return the venue of a name; refuse one that is unknown, does not load or does not fit."""
    venue = cast(Venue[Any], load_venue(name))
    missing = [each for each in _PORT if not each.startswith("_") and not hasattr(venue, each)]
    if missing:
        raise RefusedError(f"{describe_venue(name)} does not fit: it lacks {', '.join(missing)}")
    if venue.name != name:
        raise RefusedError(f'{describe_venue(name)} does not fit: it calls itself "{venue.name}"')
    _check_settings(name, venue.settings)
    return venue


def _check_settings(name: str, struct: object) -> None:
    is_struct = isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    if is_struct and cast(Any, struct).__struct_config__.frozen:
        try:
            cast(Any, struct)()
        except TypeError:
            pass
        else:
            return
    raise RefusedError(
        f"{describe_venue(name)} does not fit: settings is {struct!r}; expected a msgspec.Struct"
        " that is frozen and has a default for every key"
    )


def venue_settings(venues: VenuesConfig, venue: Venue[S]) -> S:
    """Return the table of the venue; its defaults where the settings do not have it."""
    found: S | None = getattr(venues, venue.name, None)
    return venue.settings() if found is None else found


def account_key(brokers: BrokersConfig, venues: VenuesConfig) -> AccountKey:
    """Return the account that the settings name; it needs no connection."""
    if brokers.names == ("paper",):
        return paper_account(brokers.paper)
    (name,) = brokers.names
    venue = venue_of(name)
    return venue.account(venue_settings(venues, venue))
