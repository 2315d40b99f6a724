"""What a run tells of itself four times a second: all figures the pages show, in one value.

A run writes it into Valkey under `<cache.prefix>live`, where it lasts a few seconds. Whoever shows
it (the dashboard, `qts top`) reads it there, never in the run: no run, no value.
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
EVERY_S = 0.25
TTL_MS = 5_000


class StrategyStatus(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: str
    enabled: bool
    signals: int
    errors: int
    dropped: int  # ticks it was too slow for
    stopped: str  # why it is not called any more
    params: dict[str, Any]
    fields: dict[str, dict[str, Any]]  # of each parameter: type, bounds, description


class PositionStatus(msgspec.Struct, frozen=True, kw_only=True):
    symbol: str
    quantity: Decimal
    average_price: Decimal
    price: Decimal
    unrealised: Decimal
    strategy: str


class AccountStatus(msgspec.Struct, frozen=True, kw_only=True):
    cash: Decimal
    equity: Decimal
    realised_today: Decimal  # after fees
    unrealised: Decimal
    orders_today: int


class SafetyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """As the run itself sees it: LOCKDOWN while the database does not answer."""

    state: str
    code: str | None
    message: str
    trading: bool  # the account's switch
    suspended: str  # why no cycle acts; empty: they do
    may_trade: bool  # the books have been compared with the broker's


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    depths: list[Depth]
    per_second: dict[str, float]  # handled, by stream
    paused: list[str]


class LiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds since 1970
    pid: int
    version: str
    started_at: datetime
    mode: Literal["paper", "live"]
    broker: str
    trades: str  # what is traded, in a sentence
    ticks: int
    events: EngineStatus
    rates: dict[str, float]  # handled in a second, by lane
    drops: dict[str, dict[str, int]]  # by type, then by symbol; the most
    feed: FeedStatus | None
    cache: CacheStatus
    outbox: OutboxStatus
    strategies: list[StrategyStatus]
    positions: list[PositionStatus]
    money: AccountStatus
    safety: SafetyStatus
    refusals: dict[str, int]
    notices: list[RecentAlert]  # the youngest first


def encode(live: LiveStatus) -> str:
    return msgspec.json.encode(live).decode()


async def read_text(store: CacheStore, prefix: str) -> str | None:
    """As it was written; None: nothing runs."""
    (fields,) = await store.read([prefix + KEY])
    return fields.get("json") if fields else None


async def read_live(store: CacheStore, prefix: str = "qts:") -> LiveStatus | None:
    text = await read_text(store, prefix)
    return None if text is None else msgspec.json.decode(text, type=LiveStatus)


def most(drops: Mapping[str, Mapping[str, int]], count: int = 20) -> dict[str, dict[str, int]]:
    """The greatest of them: a value that is told four times a second stays small."""
    flat = sorted(
        ((many, kind, key) for kind, keys in drops.items() for key, many in keys.items()),
        reverse=True,
    )
    found: dict[str, dict[str, int]] = {}
    for many, kind, key in flat[:count]:
        found.setdefault(kind, {})[key] = many
    return found
