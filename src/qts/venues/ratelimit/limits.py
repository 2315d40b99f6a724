"""Rate limits of one key, request priorities, and the quota of each priority."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Annotated, Literal

import msgspec

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
