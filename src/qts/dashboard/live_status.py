"""Live status of a run: all figures of the pages in one value, published four times a second.

Lane P3 of a run writes it to Valkey under `<cache.prefix>live`, where it expires after a few
seconds. The dashboard and `qts top` read it there; without a run there is no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec

from qts.brokers import LeaseStatus
from qts.cache import CacheStatus, CacheStore
from qts.domain import Clock
from qts.events import EngineStatus
from qts.feed import FeedStatus
from qts.notify import RecentAlert
from qts.orders import StrategyProfit
from qts.outbox import Depth
from qts.pipeline import MarketStatus

KEY = "live"  # below the prefix of the cache
INTERVAL_S = 0.25
TTL_MS = 5_000
STALE_S = 3.0  # above this age a status is old: the views grey it and say its age


RunLabel = Literal["LIVE", "PAPER", "SIMULATED"]
VerdictState = Literal["trading", "exits_only", "stopped", "unknown"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether QTS trades and, if not, why: a sentence in both languages, and its reasons."""

    state: VerdictState
    en: str
    ko: str
    codes: list[str] = []


class StrategyStatus(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: str
    enabled: bool
    signals: int
    errors: int
    dropped: int  # ticks it was too slow for
    stopped: str  # why it is disabled
    params: dict[str, Any]
    fields: dict[str, dict[str, Any]]  # of each parameter: type, bounds, description
    warm_up: str = ""  # 37 of 120 series; empty when it is done
    stopped_at: list[str] = []  # venues where its switch is off
    capital: Decimal | None = None  # that it may hold; None: what the account allows


class PositionStatus(msgspec.Struct, frozen=True, kw_only=True):
    symbol: str
    quantity: Decimal
    average_price: Decimal
    price: Decimal
    unrealised: Decimal
    strategy: str
    price_age_s: float | None  # None outside the trading session
    note: str = ""  # what its stops do not do
    name: str = ""  # of the instrument
    stop_price: float | None = None  # at which all of it is sold; None: no stop watches it
    venue: str = ""


class AccountStatus(msgspec.Struct, frozen=True, kw_only=True):
    cash: Decimal
    equity: Decimal
    realised_today: Decimal  # after fees
    unrealised: Decimal
    orders_today: int


class SafetyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Safety state as the run applies it: LOCKDOWN while the database is unreachable."""

    state: str
    code: str | None
    message: str
    trading: bool  # the account's switch
    suspended: str  # why the pipeline is suspended, if it is
    may_trade: bool  # the ledger is reconciled with the venue
    database_read: bool = True  # within three seconds; otherwise nothing may trade
    session_open: bool = True
    clock_synced: bool = True  # within venues.max_skew_s
    clock_skew_s: float | None = None  # how far the venue's clock is ahead; None: not measured


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Limit of the gate on new positions, in won or as a count, and how much of it is used."""

    name: str  # as in risk.limits
    used: Decimal
    limit: Decimal

    @property
    def is_reached(self) -> bool:
        return self.used >= self.limit


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    depths: list[Depth]
    per_second: dict[str, float]  # events handled, by stream
    paused: list[str]


class VenueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One account of a run at its venue."""

    venue: str
    broker: str
    account: str
    ticks: int
    feed: FeedStatus
    money: AccountStatus
    safety: SafetyStatus
    tick_age_s: float | None = None
    limits: list[LimitStatus] = []


class LiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds since 1970
    pid: int
    version: str
    started_at: datetime
    mode: Literal["paper", "live"]
    simulated: bool = False  # prices and venue are a simulator's
    broker: str
    account: str = ""  # the digest that its rows carry
    trades: str  # description of what is traded
    ticks: int
    tick_age_s: float | None = None  # since the last tick of any symbol; None: there was none
    events: EngineStatus
    rates: dict[str, float]  # events handled per second, by lane
    drops: dict[str, dict[str, int]]  # by type, then by symbol; the largest
    feed: FeedStatus | None
    cache: CacheStatus
    outbox: OutboxStatus
    strategies: list[StrategyStatus]
    positions: list[PositionStatus]
    money: AccountStatus
    safety: SafetyStatus
    refusals: dict[str, int]  # by the gate
    notices: list[RecentAlert]  # newest first
    market: MarketStatus = MarketStatus()
    precheck_refusals: dict[str, int] = {}  # before the gate, by what the cache holds
    limits: list[LimitStatus] = []
    profits: dict[str, StrategyProfit] = {}  # of the day by strategy; all add up to `money`
    # `feed` is that of the first; `money` adds them up, and `safety` is the worst of them.
    venues: list[VenueStatus] = []
    leases: list[LeaseStatus] = []  # of each account: its epoch, and who stands by

    @property
    def label(self) -> RunLabel:
        """What is traded: LIVE, PAPER or SIMULATED."""
        if self.simulated:
            return "SIMULATED"
        return "LIVE" if self.mode == "live" else "PAPER"


def encode(live: LiveStatus) -> str:
    return msgspec.json.encode(live).decode()


async def read_text(store: CacheStore, prefix: str) -> str | None:
    """Return the published JSON, or None if nothing runs."""
    (fields,) = await store.read([prefix + KEY])
    return fields.get("json") if fields else None


async def read_live(store: CacheStore, prefix: str = "qts:") -> LiveStatus | None:
    """Return the published status, or None if nothing runs; raise DecodeError for another value."""
    text = await read_text(store, prefix)
    return None if text is None else decode(text)


def decode(text: str) -> LiveStatus:
    return _DECODER.decode(text)


_DECODER = msgspec.json.Decoder(LiveStatus)


class LiveReading:
    """The last readable status and its age; the next status replaces both."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.changed_ns = 0
        self.text: str | None = None
        self.status: LiveStatus | None = None

    def update(self, text: str) -> bool:
        """Take what was read; return whether it is new. Raise DecodeError for another value."""
        if text == self.text:
            return False
        self.status, self.text = decode(text), text
        self.changed_ns = self._clock.monotonic_ns()
        return True

    @property
    def age_s(self) -> float | None:
        """The larger of the time since it was new here and the time since the run made it."""
        if self.status is None:
            return None
        since_read_s = (self._clock.monotonic_ns() - self.changed_ns) / 1e9
        return max(0.0, since_read_s, self._clock.now().timestamp() - self.status.at)


def largest_drops(
    drops: Mapping[str, Mapping[str, int]], count: int = 20
) -> dict[str, dict[str, int]]:
    """Return only the largest counts, to keep the status small."""
    flat = sorted(
        ((total, kind, key) for kind, keys in drops.items() for key, total in keys.items()),
        reverse=True,
    )
    found: dict[str, dict[str, int]] = {}
    for total, kind, key in flat[:count]:
        found.setdefault(kind, {})[key] = total
    return found
