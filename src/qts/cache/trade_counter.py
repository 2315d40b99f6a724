"""The number of trades of a day: counted once per trade id, and only while the limit allows.

Redis holds the set of the ids, not a number: a count that is asked for twice, because its first
answer was lost, adds nothing. A set that Redis has forgotten is begun again from the ids the
database knows and those counted here. While Redis is away or full these alone decide; two processes
could then both use the last place, and it is the database that must not let them.
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

_DAYS_MAX = 16  # account-days remembered here


class TradeIds(CacheEntry, frozen=True, kw_only=True):
    """What the database knows of a day; its name is `<account>/<day>`."""

    kind: ClassVar[str] = "trades"
    prefix: ClassVar[str] = "daily_trade_count:"
    named_by: ClassVar[str] = "day"
    dated_by: ClassVar[str] = "received_at"

    day: str
    ids: frozenset[str]


class TradeCounter:
    """`daily_trade_count:<account>/<day>`, until the trading day ends."""

    def __init__(self, levels: CacheTiers) -> None:
        self._levels = levels
        self._days: dict[str, _Day] = {}

    async def count(self, account: str, trade_id: str, limit: int, ends_at: datetime) -> int:
        """How many trades there are with this one; TradeLimitExceededError when it is one too many.

        `ends_at` is the end of the trading day and names it.
        """
        check_name("trade", trade_id)
        if ends_at <= self._levels.clock.now():
            raise RefusedError(f"the trading day of {account} ended at {ends_at:%Y-%m-%d %H:%M %Z}")
        name = check_name("trades", f"{account}/{ends_at.astimezone(UTC):%Y-%m-%dT%H}")
        key = self._levels.config.prefix + TradeIds.key(name)
        count = CountRequest(key, trade_id, limit, int(ends_at.timestamp() * 1000))
        day = self._day(name)
        try:
            total = await self._ask(count, await self._known(name, day) if day.owed else None)
            if total == UNKNOWN_COUNT:
                total = await self._ask(count, await self._known(name, day))
            day.owed = False
        except OperationError:  # away, or full
            total = _decide(count, await self._known(name, day))
            day.owed = True
        if total == LIMIT_REACHED:
            raise TradeLimitExceededError(
                f"account {account} has had its {limit} trades of the day"
            )
        day.counted.add(trade_id)
        return total

    async def _ask(self, count: CountRequest, known: Collection[str] | None) -> int:
        levels = self._levels
        ask = functools.partial(levels.store.count, count, known)
        return await levels.guard.call_with_retry(ask, levels.config.write_ms)

    async def _known(self, name: str, day: _Day) -> frozenset[str]:
        found = await self._levels.load_truth(TradeIds.kind, name)
        if found is not None and not isinstance(found, TradeIds):
            raise OperationError(f"asked for the trades of {name}, the database told {found.kind}")
        return (found.ids if found else frozenset()) | day.counted

    def _day(self, name: str) -> _Day:
        if name not in self._days and len(self._days) >= _DAYS_MAX:
            del self._days[next(iter(self._days))]
        return self._days.setdefault(name, _Day())


class _Day:
    """What was counted here, and whether Redis has yet to be told of some of it."""

    def __init__(self) -> None:
        self.counted: set[str] = set()
        self.owed = False


def _decide(count: CountRequest, known: frozenset[str]) -> int:
    if count.member in known:
        return len(known)
    return LIMIT_REACHED if len(known) >= count.limit else len(known) + 1
