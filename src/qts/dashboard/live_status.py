"""Live status of a run: all figures of the pages in one value, published four times a second.

A run writes it to Valkey under `<cache.prefix>live`, where it expires after a few seconds. The
dashboard and `qts top` read it there; without a run there is no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec

from qts.cache import CacheStatus, CacheStore
from qts.events import EngineStatus
from qts.feed import FeedStatus
from qts.notify import RecentAlert
from qts.outbox import Depth

KEY = "live"  # below the prefix of the cache
INTERVAL_S = 0.25
TTL_MS = 5_000


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


class PositionStatus(msgspec.Struct, frozen=True, kw_only=True):
    symbol: str
    quantity: Decimal
    average_price: Decimal
    price: Decimal
    unrealised: Decimal
    strategy: str
    price_age_s: float | None  # None outside the trading session
    note: str = ""  # what its stops do not do


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
    clock_skew_s: float | None = None  # how far the venue's clock is ahead; None: not measured


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    depths: list[Depth]
    per_second: dict[str, float]  # events handled, by stream
    paused: list[str]


class LiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds since 1970
    pid: int
    version: str
    started_at: datetime
    mode: Literal["paper", "live"]
    broker: str
    account: str = ""  # the digest that its rows carry
    trades: str  # description of what is traded
    ticks: int
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
    refusals: dict[str, int]
    notices: list[RecentAlert]  # newest first


def encode(live: LiveStatus) -> str:
    return msgspec.json.encode(live).decode()


async def read_text(store: CacheStore, prefix: str) -> str | None:
    """Return the published JSON, or None if nothing runs."""
    (fields,) = await store.read([prefix + KEY])
    return fields.get("json") if fields else None


async def read_live(store: CacheStore, prefix: str = "qts:") -> LiveStatus | None:
    text = await read_text(store, prefix)
    return None if text is None else msgspec.json.decode(text, type=LiveStatus)


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
