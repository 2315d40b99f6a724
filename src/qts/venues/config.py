"""Venues that can be chosen, and their settings: keys, hosts and rate limits.

A package offers a venue as an entry point of the group `qts.venues`. Reading the names imports
nothing; a venue is imported when it is chosen.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Sequence
from enum import IntEnum
from importlib.metadata import EntryPoint, entry_points
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from qts.domain import Market, RefusedError, Secret, check_name, name_choices

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS
MAX_WATCHED_SHARE = 0.8  # of the requests for quotes, for watched symbols at most


class RequestPriority(IntEnum):
    """Order of grants; each priority may use what is not reserved for those above it."""

    EXIT = 0  # exits and cancels
    ORDER = 1  # entries
    ACCOUNT = 2  # balances, executions, reconciliation
    WATCHED = 3  # quotes of symbols that are held or on order
    BURST = 4  # quotes of symbols that move
    NORMAL = 5  # scans
    HISTORY = 6  # past bars


class RateLimitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one key; all windows apply at once."""

    per_second: Annotated[
        int, msgspec.Meta(ge=1, le=1000, description="requests in any second")
    ] = 15
    per_minute: Annotated[
        int, msgspec.Meta(ge=1, le=60_000, description="requests in any 60 seconds")
    ] = 1_000
    per_day: Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="requests in a day")] = (
        100_000
    )
    day: Annotated[
        Literal["rolling", "calendar"],
        msgspec.Meta(description="a day is any 24 hours, or from midnight to midnight in Seoul"),
    ] = "rolling"
    orders_per_second: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="of per_second, reserved for orders and cancels, half of it for exits",
        ),
    ] = 2
    accounts_per_second: Annotated[
        int, msgspec.Meta(ge=0, description="of per_second, reserved for balances and executions")
    ] = 1


class Quota(msgspec.Struct, frozen=True):
    """Requests that one priority may use of each window."""

    second: int
    minute: int
    day: int


def quota_for(limits: RateLimitConfig, priority: RequestPriority) -> Quota:
    spans = ((limits.per_second, SECOND_NS), (limits.per_minute, MINUTE_NS))
    second, minute = (ceilings(limits, limit, span)[priority] for limit, span in spans)
    return Quota(second, minute, ceilings(limits, limits.per_day, DAY_NS)[priority])


def ceilings(
    limits: RateLimitConfig, limit: int, span_ns: int, watched_per_s: float = 0.0
) -> tuple[int, ...]:
    """Return how full a window may be for each priority, so that higher ones find capacity.

    The reserve shrinks with the window: at most a quarter of it for orders and an eighth for
    accounts in the second and the minute, 2 % and 1 % of the day. Entries leave half of the orders'
    reserve to exits, so that entries in flight at a venue that does not answer hold back no exit.
    `watched_per_s` requests of the second and the minute are reserved for watched symbols, at most
    80 % of what quotes may use.
    """
    if span_ns == DAY_NS:
        orders, accounts = limit // 50, limit // 100
    else:
        seconds = min(span_ns / SECOND_NS, 25.0)  # 2/s is 50 a minute: orders come in clusters
        orders = min(round(limits.orders_per_second * seconds), limit // 4)
        accounts = min(round(limits.accounts_per_second * seconds), limit // 8)
    market = max(1, limit - orders - accounts)
    entries = limit - (orders + 1) // 2
    watched = 0
    if span_ns != DAY_NS:
        share = market * MAX_WATCHED_SHARE
        watched = math.floor(min(watched_per_s * span_ns / SECOND_NS, share))
    scans = max(1, market - watched)
    return limit, max(1, entries), max(1, limit - orders), market, scans, scans, scans


KIS_REAL = "https://openapi.koreainvestment.com:9443"
KIS_PAPER = "https://openapivts.koreainvestment.com:29443"
KIS_REAL_STREAM = "ws://ops.koreainvestment.com:21000"
KIS_PAPER_STREAM = "ws://ops.koreainvestment.com:31000"
KIS_MASTER = "https://new.real.download.dws.co.kr/common/master"
UPBIT = "https://api.upbit.com"
UPBIT_STREAM = "wss://api.upbit.com/websocket/v1"
PAPER_PER_SECOND = 1
_ACCOUNT_NUMBER = re.compile(r"[0-9]{10}", re.ASCII)


class KisConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of the KIS Open API."""

    app_key: Annotated[
        Secret | None, msgspec.Meta(description="app key, 36 characters; unset: no KIS")
    ] = None
    app_secret: Annotated[
        Secret | None, msgspec.Meta(description="app secret of the key, 180 characters")
    ] = None
    account: Annotated[
        Secret | None, msgspec.Meta(description="account number, 10 digits; orders need it")
    ] = None
    hts_id: Annotated[
        Secret | None, msgspec.Meta(description="HTS user name; fill notices need it")
    ] = None
    paper: Annotated[
        bool,
        msgspec.Meta(description="the key is for paper trading: at most one request a second"),
    ] = False
    url: Annotated[
        str | None, msgspec.Meta(description="REST host; unset: KIS itself, real or paper")
    ] = None
    stream_url: Annotated[
        str | None, msgspec.Meta(description="WebSocket host; unset: that of url, or KIS itself")
    ] = None
    master_url: Annotated[
        str | None,
        msgspec.Meta(
            description="folder of the master files (kospi_code.mst.zip, ...); unset: that of KIS,"
            " or /common/master of url"
        ),
    ] = None
    timeout_s: Annotated[
        float, msgspec.Meta(ge=0.1, le=60, description="longest wait for a reply")
    ] = 5.0
    limits: Annotated[RateLimitConfig, msgspec.Meta(description="requests of this key")] = (
        RateLimitConfig()
    )

    def __post_init__(self) -> None:
        if self.account is not None and not _ACCOUNT_NUMBER.fullmatch(self.account.reveal()):
            raise ValueError(
                "account is not ten digits; expected the number and its product code without a"
                " dash, as in 1234567801"
            )

    @property
    def rest(self) -> str:
        return (self.url or (KIS_PAPER if self.paper else KIS_REAL)).rstrip("/")

    @property
    def stream(self) -> str:
        default = KIS_PAPER_STREAM if self.paper else KIS_REAL_STREAM
        if self.url is not None:  # a simulator's quotes must not be mixed with real ticks
            default = self.url.replace("http", "ws", 1)
        return (self.stream_url or default).rstrip("/")

    @property
    def master(self) -> str:
        default = KIS_MASTER if self.url is None else f"{self.url.rstrip('/')}/common/master"
        return (self.master_url or default).rstrip("/")

    @property
    def key_limits(self) -> RateLimitConfig:
        """`limits`, capped at one request a second for a paper key."""
        if not self.paper:
            return self.limits
        return msgspec.structs.replace(
            self.limits, per_second=min(self.limits.per_second, PAPER_PER_SECOND)
        )

    def credentials(self) -> tuple[Secret, Secret]:
        if not self.app_key or not self.app_secret:
            raise RefusedError(
                "venues.kis.app_key and venues.kis.app_secret are not set; get them from the KIS "
                "Open API portal and set QTS_VENUES__KIS__APP_KEY and ..._APP_SECRET"
            )
        return self.app_key, self.app_secret


class UpbitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of the Upbit Open API; quotes need none."""

    access_key: Annotated[
        Secret | None, msgspec.Meta(description="access key; unset: quotes only")
    ] = None
    secret_key: Annotated[Secret | None, msgspec.Meta(description="secret of the key")] = None
    account: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=64,
            description="name of the account; a second one on the same database needs its own",
        ),
    ] = "upbit"
    url: Annotated[str, msgspec.Meta(description="REST host")] = UPBIT
    stream_url: Annotated[str, msgspec.Meta(description="WebSocket address")] = UPBIT_STREAM
    timeout_s: Annotated[
        float, msgspec.Meta(ge=0.1, le=60, description="longest wait for a reply")
    ] = 5.0
    orders_per_second: Annotated[
        int, msgspec.Meta(ge=1, le=100, description="orders the key may send in a second")
    ] = 12
    requests_per_second: Annotated[
        int, msgspec.Meta(ge=1, le=100, description="other requests of the key in a second")
    ] = 30
    quotes_per_second: Annotated[
        int, msgspec.Meta(ge=1, le=100, description="quote requests of this address in a second")
    ] = 10


class VenuesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of our venues; the loader adds the tables of others that are chosen."""

    kis: Annotated[KisConfig, msgspec.Meta(description="KIS Open API")] = KisConfig()
    upbit: Annotated[UpbitConfig, msgspec.Meta(description="Upbit Open API")] = UpbitConfig()
    max_skew_s: Annotated[
        float,
        msgspec.Meta(
            gt=0, le=60, description="no entries while the venue's clock differs by more than this"
        ),
    ] = 1.0


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


GROUP = "qts.venues"
# Adapters are classes of the composition root, which this package cannot import.
BUILT_IN = {"kis": "qts.app.kis_venue:KisVenue", "upbit": "qts.app.upbit_venue:UpbitVenue"}
_MARKETS = {"kis": Market.KRX, "upbit": Market.UPBIT}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", re.ASCII)  # a key of the settings
_RESERVED = {"paper", *(each.lower() for each in Market), *VenuesConfig.__struct_fields__}


def venue_names() -> tuple[str, ...]:
    """Return the names of all venues that can be chosen."""
    return (*BUILT_IN, *dict.fromkeys(each.name for each in _entry_points()))


def market_of_venue(name: str) -> Market | str:
    """Return the market by which bars are kept: KRX for kis, the name of a venue of others."""
    name = name.lower()
    markets = {each.lower(): each for each in Market if each is not Market.OTHER} | _MARKETS
    if name not in markets:
        check_name("venue", name, (*(markets.keys() - BUILT_IN.keys()), *venue_names()))
    return markets.get(name, name)


def is_venue(name: str) -> bool:
    return name in BUILT_IN or any(each.name == name for each in _entry_points())


def check_venue_names(setting: str, names: Sequence[str], *others: str) -> None:
    """Raise ValueError unless every name is known, and each is there once; `others` are too."""
    if not names:
        raise ValueError(f"{setting} is empty; expected {' or '.join((*others, *venue_names()))}")
    for name in names:
        if name not in others and not is_venue(name):
            known = (*others, *venue_names())
            raise ValueError(f'{setting} = "{name}": expected one of {name_choices(name, known)}')
        if names.count(name) > 1:
            raise ValueError(f'{setting} names "{name}" twice; expected each once')


@functools.cache
def load_venue(name: str) -> object:
    """Import and create the venue of a name; raise RefusedError if that cannot be done."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(importlib.import_module(module), attribute)()
    check_name("venue", name, venue_names())
    found = [each for each in _entry_points() if each.name == name]
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        raise RefusedError(f'venue "{name}" is offered by {packages}; uninstall one of them')
    (entry,) = found
    try:
        return entry.load()()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RefusedError(f"{describe_venue(name)} does not load: {reason}") from error


def describe_venue(name: str) -> str:
    """Return the venue with its package and entry point, for an error."""
    for entry in _entry_points():
        if entry.name == name:
            return f'venue "{name}" of {_package(entry)} (entry point {name} = "{entry.value}")'
    return f'venue "{name}"'


def _entry_points() -> list[EntryPoint]:
    """Return the entry points of others; a name that is ours or no key of settings is not one."""
    found = entry_points(group=GROUP)
    return [each for each in found if _NAME.fullmatch(each.name) and each.name not in _RESERVED]


def _package(entry: EntryPoint) -> str:
    dist = entry.dist
    return f"package {dist.name} {dist.version}" if dist is not None else "a package without a name"
