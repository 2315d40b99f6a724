"""Fills of Upbit, which lists closed orders by placement time and gives the trades of one order.

    listed      open orders, and closed ones placed since the last list; of a week before the first
    requested   orders with fills that are open, were open in the last list, or are new
    remembered  the fills of closed orders: they are final
    left out    closed orders whose fills are all in the ledger, and all before those asked for

So a reading costs what has happened since the one before, not what happened in the week.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from qts.brokers.upbit_codec import fills_of
from qts.database import Database
from qts.domain import AccountKey, FeeSchedule, Fill
from qts.venues import VenueRejectedError

OVERLAP = timedelta(seconds=60)  # of two lists, by the venue's clock
_APPLIED = (
    "SELECT o.broker_order_id, o.applied, max(f.traded_at) AS last_at"
    " FROM broker_order o JOIN fill f USING (broker, account, broker_order_id)"
    " WHERE o.broker = $1 AND o.account = $2 AND o.broker_order_id = ANY ($3)"
    " GROUP BY o.broker_order_id, o.applied"
)

Json = dict[str, Any]


class AppliedFills(NamedTuple):
    """What the ledger has of an order."""

    quantity: Decimal
    last_at: datetime


ReadApplied = Callable[[Sequence[str]], Awaitable[Mapping[str, AppliedFills]]]


def read_applied(database: Database, key: AccountKey) -> ReadApplied:
    """Return what reads the fills that the ledger has of orders."""

    async def read(order_ids: Sequence[str]) -> Mapping[str, AppliedFills]:
        rows = await database.fetch(_APPLIED, *key, list(order_ids))
        return {
            row["broker_order_id"]: AppliedFills(row["applied"], row["last_at"]) for row in rows
        }

    return read


class OrderLists(NamedTuple):
    """Requests: the open orders, closed ones placed since then, and an order with its trades."""

    open: Callable[[], Awaitable[list[Json]]]
    closed: Callable[[datetime], Awaitable[list[Json]]]
    order: Callable[[str], Awaitable[Json]]


class _ClosedOrder(NamedTuple):
    placed_at: datetime
    fills: list[Fill] | None  # None: all are in the ledger
    last_at: datetime | None = None


class UpbitFillReader:
    """Reader of one account, one call at a time; without `applied` the ledger is not asked."""

    def __init__(self, lists: OrderLists, costs: FeeSchedule, applied: ReadApplied | None) -> None:
        self._lists = lists
        self._costs = costs
        self._applied = applied
        self._closed: dict[str, _ClosedOrder] = {}
        self._open: frozenset[str] = frozenset()
        self._listed: tuple[datetime, datetime] | None = None  # orders placed from, to

    async def read(self, placed_since: datetime, first: datetime, now: datetime) -> list[Fill]:
        """Return the fills since `first` of orders placed since then, oldest first."""
        start, listed_from = self._start(placed_since, now)
        open_rows = await self._lists.open()  # first: one that closes meanwhile is then in both
        rows = {row["uuid"]: row for row in (*open_rows, *await self._lists.closed(start))}
        open_now = frozenset(row["uuid"] for row in open_rows)
        kept = {key: each for key, each in self._closed.items() if each.placed_at >= placed_since}
        filled = [each for each, row in rows.items() if Decimal(row["executed_volume"]) > 0]
        new = [rows[each] for each in filled if each not in kept and each not in open_now]
        self._closed = kept | await self._in_ledger(new)
        was_open = self._open - rows.keys()
        fills: list[Fill] = []
        for uuid in dict.fromkeys((*filled, *was_open, *self._closed)):
            fills += await self._fills_of(uuid, first)
        placed = [datetime.fromisoformat(row["created_at"]) for row in rows.values()]
        self._open, self._listed = open_now, (listed_from, max([start, *placed]))
        return sorted((fill for fill in fills if fill.at >= first), key=lambda fill: fill.at)

    def _start(self, placed_since: datetime, now: datetime) -> tuple[datetime, datetime]:
        """Return from when on closed orders are listed now, and have been listed then."""
        if self._listed is None or self._listed[0] > placed_since:
            return placed_since, placed_since
        listed_from, listed_to = self._listed
        return max(placed_since, min(listed_to, now) - OVERLAP), listed_from

    async def _in_ledger(self, rows: list[Json]) -> dict[str, _ClosedOrder]:
        """Return the closed orders whose fills the ledger has in full."""
        if self._applied is None or not rows:
            return {}
        known = await self._applied([row["uuid"] for row in rows])
        return {
            row["uuid"]: _ClosedOrder(datetime.fromisoformat(row["created_at"]), None, has.last_at)
            for row in rows
            if (has := known.get(row["uuid"])) and has.quantity == Decimal(row["executed_volume"])
        }

    async def _fills_of(self, uuid: str, first: datetime) -> list[Fill]:
        if (known := self._closed.get(uuid)) is not None:
            if known.fills is not None:
                return known.fills
            if known.last_at is not None and known.last_at < first:
                return []
        try:
            row = await self._lists.order(uuid)
        except VenueRejectedError as error:
            if error.code != "order_not_found":  # one that was cancelled without a fill
                raise
            return []
        fills = fills_of(row, self._costs)
        if row["state"] in ("done", "cancel"):
            self._closed[uuid] = _ClosedOrder(datetime.fromisoformat(row["created_at"]), fills)
        return fills
