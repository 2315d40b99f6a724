"""Ports of a venue: what QTS needs of a place with market data and orders, and of its broker.

    Venue, chosen by its name          known without a connection
      ├─ settings, environment, account    table [venues.NAME], whose money, which account
      ├─ instruments, calendar, limits     what is listed, when it trades, what it allows
      ├─ history                           which past bars it offers
      ├─ simulator                         a stand-in while the settings have no key
      └─ connect ──▶ VenueConnection       data (quotes, stream), history, skew, broker, preview

An adapter implements both; `qts.testing` has a conformance suite for each part. Its Broker accepts
orders:

place ──▶ broker order id     accepted (ACKED)
  ├─ VenueRejectedError       declined: nothing was placed
  ├─ RateLimitedError         too many requests: nothing was placed
  ├─ VenueBlockedError        banned by the venue: no orders until the operator resumes
  ├─ UnreachableError         certainly not sent: nothing was placed
  └─ OutcomeUnknownError      may have been placed: find it, never send it again

Accounts are opened and listed in the database; lease.py says who may trade one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from qts.brokers.config import BrokersConfig, paper_account
from qts.database import Database
from qts.domain import (
    Account,
    AccountKey,
    BrokerOrder,
    Clock,
    Fill,
    Instruments,
    OperationError,
    OrderRequest,
    RefusedError,
)
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

_OPEN = "SELECT account_open($1, $2, $3)"
_IS_LOCKED = """
SELECT EXISTS (
    SELECT FROM pg_locks, hashtextextended('qts account ' || $1, 0) AS key
     WHERE locktype = 'advisory' AND granted AND objsubid = 1
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid)
"""


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


class VenueBlockedError(OperationError):
    """Ban by the venue (HTTP 418); `until` is None if the venue gave no end."""

    def __init__(self, text: str, until: datetime | None = None) -> None:
        super().__init__(text)
        self.until = until


class OrderMatches(msgspec.Struct, frozen=True):
    """Orders of a venue that may be the one whose outcome is unknown.

    `candidates` carry its client order id, or fit it and were placed at about that time.
    `elsewhen` fit it and are dated otherwise, or where the client order id should be they have
    none: not proof of the order, but as long as there is one the order is not proven absent.
    """

    candidates: tuple[BrokerOrder, ...]
    elsewhen: tuple[BrokerOrder, ...] = ()


def match_orders(
    orders: Iterable[BrokerOrder],
    request: OrderRequest,
    between: tuple[datetime, datetime],
    known: frozenset[str],
) -> OrderMatches:
    """Match by symbol, side, type, quantity and price, at a venue without client order ids."""
    first, last = between
    fits = [o for o in orders if o.broker_order_id not in known and is_match(o, request)]
    return OrderMatches(
        tuple(order for order in fits if first <= order.placed_at <= last),
        tuple(order for order in fits if not first <= order.placed_at <= last),
    )


def is_match(order: BrokerOrder, request: OrderRequest) -> bool:
    """Whether the order has the symbol, side, type, quantity and price of the request."""
    requested = (request.symbol, request.side, request.type, request.quantity, request.price)
    return requested == (order.symbol, order.side, order.type, order.quantity, order.price)


class StreamGap(msgspec.Struct, frozen=True):
    """Interruption of the venue stream: reports may be missing, so the caller must reconcile."""

    reason: str


ExecutionReport = Fill | BrokerOrder | StreamGap


class Broker(Protocol):
    name: str
    key: AccountKey  # of the account that takes the orders

    async def place(self, request: OrderRequest) -> str:
        """Send the order once; return the broker order id or raise as drawn above."""
        ...

    async def cancel(self, broker_order_id: str) -> None:
        """Request a cancel; raise VenueRejectedError if nothing is left to cancel."""
        ...

    async def find_order(
        self, request: OrderRequest, sent_at: datetime, known: frozenset[str]
    ) -> OrderMatches:
        """Search the venue's lists, as they are now, for an order that may have been placed.

        `sent_at` is our time: an adapter widens its search by the difference between the clocks.
        `known` holds broker order ids that belong to other attempts, or were known before.
        """
        ...

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        """Return every open order, and every order placed since then by our clock."""
        ...

    async def fills(self, since: datetime) -> Sequence[Fill]:
        """Return every fill since then, oldest first; a fill always has the same trade_id."""
        ...

    async def account(self) -> Account: ...

    def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        """Yield updates of our orders until closed, beginning with a StreamGap."""
        ...


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


async def open_account(database: Database, key: AccountKey, *, is_live: bool) -> None:
    """Make the account known; its first opening moves the rows that are its own (0016)."""
    await database.fetchval(_OPEN, *key, is_live)


async def list_accounts(database: Database) -> Sequence[AccountKey]:
    """Return every account that was ever opened, by broker."""
    rows = await database.fetch("SELECT broker, account FROM account ORDER BY broker, opened_at")
    return [AccountKey(*row) for row in rows]


async def is_account_locked(database: Database, key: AccountKey) -> bool:
    """Return whether a run holds the account now."""
    held: bool = await database.fetchval(_IS_LOCKED, str(key))
    return held
