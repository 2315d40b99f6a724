"""Daily trade count: each trade id counts once, and only below the limit.

Redis holds the set of ids, not a number, so a request repeated after a lost reply adds nothing. A
set that Redis lost is rebuilt from the ids in the database and those counted in this process. While
Redis is down or full, these alone decide; two processes could then both use the last place, and the
database must prevent it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from datetime import UTC, datetime
from typing import ClassVar

from qts.cache.entry import CacheEntry, check_name
from qts.cache.region import CacheTiers
from qts.cache.store import LIMIT_REACHED, UNKNOWN_COUNT, CountRequest
from qts.domain import OperationError, RefusedError, TradeLimitExceededError

_MAX_DAYS = 16  # account-days kept in memory


class TradeIds(CacheEntry, frozen=True, kw_only=True):
    """Trade ids of a day in the database; its name is `<account>/<day>`."""

    kind: ClassVar[str] = "trades"
    prefix: ClassVar[str] = "daily_trade_count:"
    named_by: ClassVar[str] = "day"
    dated_by: ClassVar[str] = "received_at"

    day: str
    ids: frozenset[str]


class TradeCounter:
    """`daily_trade_count:<account>/<day>`, until the trading day ends."""

    def __init__(self, tiers: CacheTiers) -> None:
        self._tiers = tiers
        self._days: dict[str, _DayCount] = {}

    async def count(self, account: str, trade_id: str, limit: int, ends_at: datetime) -> int:
        """Return the trades of the day with this one; raise TradeLimitExceededError above `limit`.

        `ends_at` is the end of the trading day and names it.
        """
        check_name("trade", trade_id)
        if ends_at <= self._tiers.clock.now():
            raise RefusedError(f"the trading day of {account} ended at {ends_at:%Y-%m-%d %H:%M %Z}")
        name = _day_name(account, ends_at)
        key = self._tiers.config.prefix + TradeIds.key(name)
        count = CountRequest(key, trade_id, limit, int(ends_at.timestamp() * 1000))
        day = self._day(name)
        missing = frozenset(day.missing)  # others may be added until Redis replies
        try:
            total = await self._count(count, await self._known(name, day) if missing else None)
            if total == UNKNOWN_COUNT:
                total = await self._count(count, await self._known(name, day))
            day.missing -= missing
        except OperationError:  # down, or full
            total = _decide(count, await self._known(name, day))
            if total != LIMIT_REACHED:
                day.missing.add(trade_id)
        day.total = max(day.total, limit if total == LIMIT_REACHED else total)
        if total == LIMIT_REACHED:
            raise TradeLimitExceededError(
                f"account {account} has reached its daily limit of {limit} trades"
            )
        day.counted.add(trade_id)
        return total

    def total(self, account: str, ends_at: datetime) -> int:
        """Return the trades of the day by the last count in this process; never waits."""
        day = self._days.get(_day_name(account, ends_at))
        return day.total if day is not None else 0

    async def _count(self, count: CountRequest, known: Collection[str] | None) -> int:
        tiers = self._tiers
        call = functools.partial(tiers.store.count, count, known)
        return await tiers.policy.call_with_retry(call, tiers.config.write_ms)

    async def _known(self, name: str, day: _DayCount) -> frozenset[str]:
        found = await self._tiers.load_value(TradeIds.kind, name)
        if found is not None and not isinstance(found, TradeIds):
            raise OperationError(
                f"requested the trades of {name}, the loader returned {found.kind}"
            )
        return (found.ids if found else frozenset()) | day.counted

    def _day(self, name: str) -> _DayCount:
        if name not in self._days and len(self._days) >= _MAX_DAYS:
            del self._days[next(iter(self._days))]
        return self._days.setdefault(name, _DayCount())


class _DayCount:
    """Ids counted in this process, those of them that Redis may lack, and the last total."""

    def __init__(self) -> None:
        self.total = 0
        self.counted: set[str] = set()
        self.missing: set[str] = set()


def _day_name(account: str, ends_at: datetime) -> str:
    return check_name("trades", f"{account}/{ends_at.astimezone(UTC):%Y-%m-%dT%H}")


def _decide(count: CountRequest, known: frozenset[str]) -> int:
    if count.member in known:
        return len(known)
    return LIMIT_REACHED if len(known) >= count.limit else len(known) + 1
